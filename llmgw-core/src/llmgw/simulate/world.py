"""A fleet, its servers and its troubles, run for simulated hours.

Events ─▶ nodes ─▶ intake ─▶ stores ─▶ observe ─▶ decide ─▶ commands ─▶ nodes
             ▲ faults                                └─▶ endpoints ─▶ invariants
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from zlib import crc32

from llmgw.contracts.engine import EngineTraits
from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.snapshot import Engine, Limits
from llmgw.domain.catalog import Model
from llmgw.domain.commands import Command, StopShard
from llmgw.domain.endpoints import Endpoint, EndpointUsage, RouterUsage
from llmgw.domain.ids import Epoch, NodeId, SessionId
from llmgw.domain.reports import Heartbeat, Rejection
from llmgw.simulate import invariants
from llmgw.simulate.drawing import ENGINE, draw_model, make_node
from llmgw.simulate.events import Events, VirtualTime
from llmgw.simulate.nodes import SimNode, Upward
from llmgw.simulate.runs import Outcome, WorldSize
from llmgw.simulate.servers import SharedLease, SimServer

#: From a node to a server and back.
LATENCY_S = 0.02
#: A pass over a fleet, and the rest that its loop takes after it.
PASS_S_PER_NODE = 1e-4
#: Invariants that look at everything are checked this often; those on what changed, always.
FULL_CHECK_S = 600.0
#: Longer than any backoff, load, drain and settling together.
QUIET_S = 2400.0


@dataclass(frozen=True, slots=True)
class _Said:
    """What the operator decided about a node."""

    id: NodeId
    cordoned: str | None = None
    draining: str | None = None
    drain_until: float | None = None
    fenced: str | None = None
    labels: dict[str, str] | None = None


class World:
    """One simulated site. The same seed gives the same run, step by step."""

    def __init__(
        self,
        size: WorldSize,
        *,
        seed: int,
        faults: Sequence[tuple[Fault, int]],
        policy: PlacementPolicy | None = None,
    ) -> None:
        """faults: what may go wrong, with how often each is drawn next to the others."""
        self.size = size
        self.seed = seed
        self.random = Random(seed)  # noqa: S311 - reproducible on purpose
        self.time = VirtualTime()
        self.events = Events(self.time)
        self.lease = SharedLease(self.time)
        self.loss = 0.0  #: share of commands that vanish
        self.first_catalog = tuple(
            draw_model(self.random, index, is_paired=index < size.paired)
            for index in range(size.models)
        )
        self.catalog = self.first_catalog
        self.nodes: dict[NodeId, SimNode] = {}
        self.servers: dict[str, SimServer] = {}
        self._kinds = [fault for fault, _ in faults]
        self._weights = [weight for _, weight in faults]
        self._policy = policy or Pack()
        self._pace_s = max(LATENCY_S, size.nodes * PASS_S_PER_NODE)
        self._limits = Limits(scale_down_after=60.0)
        self._said: dict[NodeId, _Said] = {}
        self._sessions = itertools.count(1)
        self._linked: set[NodeId] = set()
        self._due: dict[str, float] = {}
        self._thaws: dict[str, float] = {}
        self._epochs: dict[NodeId, Epoch] = {}
        self._checked_at = 0.0
        self._usage: tuple[float, list[tuple[Endpoint, ...]], RouterUsage] = (
            -1.0,
            [],
            RouterUsage(),
        )
        self._seen_endpoints: dict[str, tuple[Endpoint, ...]] = {}
        self._faults = 0
        self._passes = 0
        self._history = 0
        for index in range(size.nodes):
            self._add_node(f"n{index:04}")
        for index in range(size.servers):
            self._start_server(f"server{index}")

    # -- running -------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run under faults, heal everything, and see that all comes to rest as it should.

        Raises Violation naming seed and moment.
        """
        try:
            end = self.time.now + self.size.hours * 3600
            self._next_fault(end)
            self.events.run_until(end, each=self._check_changed)
            self._heal()
            self.events.run_until(self.time.now + QUIET_S, each=self._check_changed)
            before = self._passes
            self.events.run_until(self.time.now + QUIET_S, each=self._check_changed)
            self._check_all()
            invariants.check_converged(self._leader(), list(self.nodes.values()))
        except AssertionError as violation:
            raise invariants.Violation(
                f"seed {self.seed}, {self.time.now:.2f} s, event {self.events.happened}: "
                f"{violation}\nreplay: World({self.size}, seed={self.seed}, faults=FAULTS).run()"
            ) from violation
        return Outcome(
            seed=self.seed,
            events=self.events.happened,
            faults=self._faults,
            passes=self._passes,
            starts=sum(node.starts for node in self.nodes.values()),
            quiet_passes=self._passes - before,
            history=self._history,
        )

    def _next_fault(self, end: float) -> None:
        def happen() -> None:
            if self.time.now < end:
                (fault,) = self.random.choices(self._kinds, self._weights)
                self._faults += 1
                fault(self)
                self._next_fault(end)

        self.events.after(self.random.expovariate(1 / self.size.fault_every_s), happen)

    def _heal(self) -> None:
        self.lease.away = False
        self.loss = 0.0
        self._thaws.clear()
        for node in self.nodes.values():
            node.broken.clear()
            if self._said.pop(node.id, None) is not None:
                self._tell_servers_of(_Said(node.id, labels={}))
            if not node.host_up:
                node.boot()
            self.link(node.id)

    # -- what faults may do --------------------------------------------------------------

    def draw_node(self) -> NodeId:
        """Return some node."""
        return self.random.choice(tuple(self.nodes))

    def cut(self, node: NodeId) -> None:
        """End the node's sessions; what it runs goes on."""
        self._linked.discard(node)
        for server in self.servers.values():
            server.hear(node)
            if (session := server.sessions.pop(node, None)) is not None:
                server.intake.disconnected(node, session)

    def link(self, node: NodeId) -> None:
        """Begin new sessions, unless the host is down."""
        if not self.nodes[node].host_up:
            return
        self._linked.add(node)
        for server in self.servers.values():
            self._register(server, node)

    def boot(self, node: NodeId) -> None:
        """Bring a host up again."""
        if not self.nodes[node].host_up:
            self.nodes[node].boot()
        self.link(node)

    def restart_server(self, name: str) -> None:
        """End a server without warning and start it again after a while."""
        if self.servers.pop(name, None) is not None:
            self.events.after(self.random.uniform(1, 60), lambda: self._start_server(name))

    def freeze_server(self, name: str, duration_s: float) -> None:
        """Let a server do nothing for a while, and then go on as if no time had passed."""
        self._thaws[name] = max(self._thaws.get(name, 0.0), self.time.now + duration_s)

    def hand_over(self) -> None:
        """Let whoever leads step down in order, as a server that is told to stop does."""
        for server in self.servers.values():
            server.step_down()

    def set_catalog(self, catalog: tuple[Model, ...]) -> None:
        """Put another catalog in force on every server."""
        self.catalog = catalog
        for server in self.servers.values():
            server.stores.desired.set_catalog(catalog, wall=self.time.wall())
            server.stores.wake.ring()

    def tell_operator(self, node: NodeId, kind: str) -> None:
        """Let an operator decide about a node."""
        self._said[node] = _Said(
            node,
            cordoned="simulated" if kind == "cordon" else None,
            draining="simulated" if kind == "drain" else None,
            fenced="simulated" if kind == "fence" else None,
            labels={},
        )
        self._tell_servers_of(self._said[node])

    def tell_devices(self, node: SimNode) -> None:
        """Let a node report the state of its devices in a heartbeat."""
        for server in self.servers.values():
            if (session := server.sessions.get(node.id)) is not None:
                beat = Heartbeat(session=session, sequence=0, devices=node.inventory.devices)
                server.intake.heartbeat(node.id, beat)

    def usage(self) -> RouterUsage:
        """Return what a router would say: nothing stays open on what drains for long."""
        tables = [server.endpoints for server in self.servers.values() if server.leads]
        if self._usage[:2] != (self.time.now, tables):
            second = int(self.time.now)
            used = EndpointUsage(idle_s=self.time.now % 300.0, in_flight=0)
            by_load = [replace(used, in_flight=count) for count in range(5)]
            endpoints = {
                endpoint.id: used
                if endpoint.draining
                else by_load[(crc32(endpoint.id.encode()) + second) % 5]
                for table in tables
                for endpoint in table
            }
            self._usage = (self.time.now, tables, RouterUsage(endpoints=endpoints))
        return self._usage[2]

    # -- wires ---------------------------------------------------------------------------

    def _start_server(self, name: str) -> None:
        self._due.pop(name, None)
        server = self.servers[name] = SimServer(
            name,
            time=self.time,
            lease_store=self.lease,
            engines={
                ENGINE: Engine(traits=EngineTraits(), sleep_levels=lambda _: frozenset({1, 2}))
            },
            policy=self._policy,
            usage=self,
            catalog=self.catalog,
            limits=self._limits,
        )
        known = [self._said.get(node) or _Said(node, labels={}) for node in sorted(self.nodes)]
        server.stores.inventory.know(known, now=self.time.now, wall=self.time.wall())  # type: ignore[arg-type]
        for node in sorted(self._linked):
            delay_s = self.random.uniform(0, 15)
            self.events.after(delay_s, partial(self._register, server, node))
        self._lead(server)
        self._wake(server, 0.0)

    def _lead(self, server: SimServer) -> None:
        if (frozen_s := self._frozen_s(server)) > 0:
            self.events.after(frozen_s, partial(self._lead, server))
        elif self.servers.get(server.name) is server:
            again_s = server.try_to_lead()
            self.events.after(again_s + self.random.random(), partial(self._lead, server))

    def _frozen_s(self, server: SimServer) -> float:
        return self._thaws.get(server.name, 0.0) - self.time.now

    def _register(self, server: SimServer, node: NodeId) -> None:
        if node not in self._linked or self.servers.get(server.name) is not server:
            return
        session = SessionId(f"{node}/{next(self._sessions)}")
        server.sessions[node] = session
        server.intake.registered(self.nodes[node].registration(session))

    def _told_by(self, node: SimNode, message: Upward) -> None:
        said = message.code if isinstance(message, Rejection) else message.shard.state.value
        self._note(node.id, said)
        for name in sorted(self.servers):
            server = self.servers[name]
            if (session := server.sessions.get(node.id)) is None:
                continue
            if isinstance(message, Rejection):
                server.intake.rejected(message)
            else:
                server.intake.shard_reported(node.id, session, message)

    def _deliver(self, server: SimServer, node: NodeId, commands: tuple[Command, ...]) -> bool:
        if node not in server.sessions:
            return False
        session = server.sessions[node]

        def arrive() -> None:
            if server.sessions.get(node) != session or self.random.random() < self.loss:
                return
            target = self.nodes[node]
            for command in commands:
                self._note(node, type(command).__name__)
                if isinstance(command, StopShard) and command.epoch >= target.epoch:
                    engine = target.engines.get(command.shard)
                    if engine is not None and server.leads:
                        invariants.check_stop(server, command.replica, engine.state)
                target.apply(command)
                self._check_node(target)

        self.events.after(LATENCY_S, arrive)
        return True

    def _note(self, node: NodeId, what: str) -> None:
        self._history = crc32(f"{self.time.now:.6f} {node} {what}".encode(), self._history)

    def _wake(self, server: SimServer, delay_s: float) -> None:
        due = self.time.now + delay_s
        if self._due.get(server.name, float("inf")) <= due:
            return
        self._due[server.name] = due

        def turn() -> None:
            if self.servers.get(server.name) is not server or self._due.get(server.name) != due:
                return
            self._due.pop(server.name)
            if (frozen_s := self._frozen_s(server)) > 0:
                self._wake(server, frozen_s)
                return
            self._passes += 1
            again_s = server.take_turn(lambda node, commands: self._deliver(server, node, commands))
            if server.endpoints is not self._seen_endpoints.get(server.name):
                self._seen_endpoints[server.name] = server.endpoints
                invariants.check_endpoints(server, self.nodes)
            invariants.check_refusals(server)
            invariants.check_plan(server)
            if again_s is not None:
                self._wake(server, max(self._pace_s, again_s))

        self.events.after(delay_s, turn)

    def _tell_servers_of(self, said: _Said) -> None:
        for server in self.servers.values():
            server.stores.inventory.know([said], now=self.time.now, wall=self.time.wall())  # type: ignore[list-item]
            server.stores.wake.ring()

    # -- checks --------------------------------------------------------------------------

    def _check_changed(self) -> None:
        for server in list(self.servers.values()):
            if server.stores.wake.reconciler.is_rung():
                self._wake(server, self._pace_s)
        invariants.check_one_leader(self.servers.values())
        if self.time.now - self._checked_at >= FULL_CHECK_S:
            self._check_all()

    def _check_all(self) -> None:
        self._checked_at = self.time.now
        for node in self.nodes.values():
            self._check_node(node)

    def _check_node(self, node: SimNode) -> None:
        invariants.check_devices(node)
        invariants.check_epoch(node, self._epochs.get(node.id, Epoch(0)))
        self._epochs[node.id] = node.epoch

    def _leader(self) -> SimServer:
        for server in self.servers.values():
            if server.leads:
                return server
        raise invariants.Violation("nobody leads")

    def _add_node(self, name: str) -> None:
        node = SimNode(
            make_node(name, number=len(self.nodes), devices=self.size.devices),
            events=self.events,
            random=self.random,
            load_s=lambda: self.random.choice([2.0, 10.0, 40.0, 300.0]),
            tell=self._told_by,
        )
        self.nodes[node.id] = node
        self._linked.add(node.id)


Fault = Callable[[World], None]
