"""Nodes that behave as agents must, with engines that take their time and break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from llmgw.control.decide.backoff import backoff_s
from llmgw.domain.commands import (
    AdaptShard,
    Command,
    DrainShard,
    ShardSpec,
    SleepShard,
    StartShard,
    WakeShard,
)
from llmgw.domain.ids import Epoch, NodeId, SessionId, ShardId
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.replicas import Failure, FailureCause, Shard, ShardState
from llmgw.domain.reports import Registration, Rejection, ShardReport
from llmgw.simulate.events import Events

Upward = ShardReport | Rejection

#: States in which an engine process exists.
ALIVE = frozenset({ShardState.STARTING, ShardState.READY, ShardState.DRAINING, ShardState.STOPPING})


@dataclass(slots=True)
class Engine:
    """One assigned shard, as the node's disk and process table have it."""

    spec: ShardSpec
    epoch: Epoch
    state: ShardState = ShardState.ASSIGNED
    incarnation: int = 0
    restarts: int = 0
    failures: int = 0
    failure: Failure | None = None
    holds_devices: bool = True  #: not while it sleeps, nor if a sleeper is stopped
    turn: int = 0  #: rises with each change, so that what was scheduled before it is void


class SimNode:
    """A host, its agent's assignments and its engines. Time passes through `events`."""

    def __init__(
        self,
        inventory: NodeInventory,
        *,
        events: Events,
        random: Random,
        load_s: Callable[[], float],
        tell: Callable[[SimNode, Upward], None],
    ) -> None:
        """tell: carries what the node says to every server that can hear it."""
        self.inventory = inventory
        self.epoch = Epoch(0)
        self.host_up = True
        self.engines: dict[ShardId, Engine] = {}
        self.shown_ready: set[tuple[ShardId, int]] = set()  #: incarnations that were ready
        self.broken: set[str] = set()  #: spec hashes that crash here
        self.starts = 0
        self._events = events
        self._random = random
        self._load_s = load_s
        self._tell = tell
        self._boots = 1

    @property
    def id(self) -> NodeId:
        return self.inventory.node

    def registration(self, session: SessionId) -> Registration:
        """Return the whole of the node."""
        return Registration(
            session=session,
            inventory=self.inventory,
            epoch=self.epoch,
            cluster_id=None,
            shards=tuple(self._report(engine) for engine in self.engines.values()),
        )

    def apply(self, command: Command) -> None:
        """Make one edit of the assignments, as told by any server."""
        shard = command.spec.id if isinstance(command, StartShard) else command.shard
        if command.epoch < self.epoch:
            self._refuse(shard, "stale_epoch", f"has obeyed epoch {self.epoch} since")
            return
        self.epoch = command.epoch
        if isinstance(command, StartShard):
            self._assign(command)
        elif (engine := self.engines.get(shard)) is not None:
            engine.epoch = command.epoch
            if engine.state is ShardState.STOPPING:
                return
            if isinstance(command, AdaptShard):
                engine.spec = replace(engine.spec, adapters=command.adapters)
                self._tell(self, self._report(engine))
            elif isinstance(command, DrainShard):
                if engine.state is ShardState.READY:
                    self._enter(engine, ShardState.DRAINING)
            elif isinstance(command, SleepShard):
                if engine.state in (ShardState.READY, ShardState.DRAINING):
                    self._later(self._random.uniform(0.5, 20.0), engine, self._sleep)
            elif isinstance(command, WakeShard):
                self._wake(engine)
            else:
                self._enter(engine, ShardState.STOPPING)
                self._later(self._random.uniform(0.5, 8.0), engine, self._gone)

    def crash(self, engine: Engine, cause: FailureCause = FailureCause.ENGINE_INTERNAL) -> None:
        """Let an engine die by itself. The agent restarts a single shard, not one of a gang."""
        if engine.state is ShardState.STOPPING:
            self._gone(engine)
            return
        engine.failures += 1
        if engine.failure is None or engine.failures == 1:
            engine.failure = Failure(cause=cause, message=f"{engine.spec.id} died")
        if engine.spec.world_size > 1:
            self._enter(engine, ShardState.FAILED)
            return
        engine.restarts += 1
        self._enter(engine, ShardState.BACKOFF)
        self._later(backoff_s(engine.failures, base_s=5.0, cap_s=300.0), engine, self._launch)

    def go_down(self) -> None:
        """The host dies, and all that runs on it."""
        self.host_up = False
        for engine in self.engines.values():
            engine.turn += 1
            engine.state = ShardState.ASSIGNED

    def boot(self) -> None:
        """The host is back: what was assigned starts afresh."""
        self.host_up = True
        self._boots += 1
        self.inventory = replace(self.inventory, boot_id=f"boot-{self.id}-{self._boots}")
        for engine in list(self.engines.values()):
            self._launch(engine)

    def _assign(self, command: StartShard) -> None:
        spec = command.spec
        if spec.id in self.engines:
            return
        if (owner := self._owner(spec)) is not None:
            self._refuse(spec.id, "device_busy", f"owned by {owner}")
            return
        for other in self.engines.values():
            if set(other.spec.ports) & set(spec.ports):
                self._refuse(spec.id, "port_in_use", f"owned by {other.spec.id}")
                return
        engine = self.engines[spec.id] = Engine(spec=spec, epoch=command.epoch)
        self._enter(engine, ShardState.ASSIGNED)
        self._later(self._random.uniform(0.1, 2.0), engine, self._launch)

    def _launch(self, engine: Engine) -> None:
        if self._is_lent(engine):
            # The shim finds the device's lock held by whoever got it while this one slept, or by
            # a sleeper that came up first after the host did.
            engine.holds_devices = False
            self.crash(engine, FailureCause.DEVICE_BUSY)
            return
        self.starts += 1
        engine.holds_devices = True
        engine.incarnation += 1
        self._enter(engine, ShardState.STARTING)
        if engine.spec.spec_hash in self.broken:
            self._later(self._random.uniform(1.0, 10.0), engine, self.crash)
        else:
            self._later(self._load_s(), engine, self._ready)

    def _ready(self, engine: Engine) -> None:
        engine.failures = 0
        self.shown_ready.add((engine.spec.id, engine.incarnation))
        self._enter(engine, ShardState.READY)

    def _owner(self, spec: ShardSpec) -> ShardId | None:
        """Return which other shard uses a device of this one."""
        for other in self.engines.values():
            if other.spec.id == spec.id or not other.holds_devices:
                continue
            if set(other.spec.devices) & set(spec.devices):
                return other.spec.id
        return None

    def _is_lent(self, engine: Engine) -> bool:
        """Return whether a process of another shard runs on a device of this one."""
        return any(
            other is not engine
            and other.state in ALIVE
            and other.holds_devices
            and not set(other.spec.devices).isdisjoint(engine.spec.devices)
            for other in self.engines.values()
        )

    def _sleep(self, engine: Engine) -> None:
        engine.holds_devices = False
        self._enter(engine, ShardState.SLEEPING)

    def _wake(self, engine: Engine) -> None:
        if engine.state is not ShardState.SLEEPING:
            return
        if (owner := self._owner(engine.spec)) is not None:
            self._refuse(engine.spec.id, "device_busy", f"owned by {owner}")
            return
        engine.holds_devices = True
        self._enter(engine, ShardState.STARTING)
        self._later(self._random.uniform(0.5, 10.0), engine, self._ready)

    def _gone(self, engine: Engine) -> None:
        engine.turn += 1
        engine.state = ShardState.STOPPED
        del self.engines[engine.spec.id]
        self._tell(self, self._report(engine))

    def _enter(self, engine: Engine, state: ShardState) -> None:
        engine.turn += 1
        engine.state = state
        self._tell(self, self._report(engine))

    def _later(self, delay_s: float, engine: Engine, happen: Callable[[Engine], None]) -> None:
        turn = engine.turn

        def due() -> None:
            if engine.turn == turn and self.host_up:
                happen(engine)

        self._events.after(delay_s, due)

    def _refuse(self, shard: ShardId, code: str, message: str) -> None:
        self._tell(self, Rejection(node=self.id, shard=shard, code=code, message=message))

    def _report(self, engine: Engine) -> ShardReport:
        spec = engine.spec
        return ShardReport(
            shard=Shard(
                id=spec.id,
                replica=spec.replica,
                node=self.id,
                rank=spec.rank,
                state=engine.state,
                devices=spec.devices,
                ports=spec.ports,
                incarnation=engine.incarnation,
                restarts=engine.restarts,
                failure=engine.failure,
            ),
            spec=spec,
            epoch=engine.epoch,
            url=f"http://{self.id}:{spec.ports[0]}" if spec.rank == 0 else None,
        )
