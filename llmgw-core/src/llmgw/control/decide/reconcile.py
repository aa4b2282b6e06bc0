"""One step toward the catalog: what to start, drain and stop, and why the rest does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field

from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.adapters import adapt
from llmgw.control.decide.eviction import propose_eviction
from llmgw.control.decide.leaving import Step, leave, rest
from llmgw.control.decide.memory import Memory, Rest
from llmgw.control.decide.order import count_by_profile, in_turn, urgency, worth
from llmgw.control.decide.parts import key_of, parts_of, share_out
from llmgw.control.decide.placement import Placer, place_model
from llmgw.control.decide.roles import (
    Roles,
    failed_shard,
    failure_of,
    is_serving,
    roles_of,
)
from llmgw.control.decide.setbacks import (
    avoidance_after,
    failed_rollout,
    held_back,
    setback_after,
)
from llmgw.control.decide.snapshot import (
    NO_PRESSURE,
    Avoidance,
    ClusterSnapshot,
    Intent,
    Pressure,
    ReplicaRecord,
    Setback,
)
from llmgw.control.decide.targets import is_stale, is_wanted, target_of
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName, NodeId, ReplicaId, replica_id
from llmgw.domain.plans import (
    Action,
    Plan,
    Refusal,
    StartReplica,
    StopReplica,
    WakeReplica,
)
from llmgw.domain.replicas import FailureCause, ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A plan, and what the stores should remember of how it came about."""

    plan: Plan = field(default_factory=Plan)
    avoided: Mapping[tuple[str, NodeId], Avoidance] = field(default_factory=dict)  #: additions
    blocked_ports: frozenset[tuple[str, int]] = frozenset()  #: additions
    setbacks: Mapping[ModelName, Setback] = field(default_factory=dict)  #: all that hold now
    pressure: Mapping[ModelName, Pressure] = field(default_factory=dict)  #: likewise
    fulfilled: frozenset[ModelName] = frozenset()  #: nobody waits for these any more
    victims: Mapping[str, ModelName] = field(default_factory=dict)  #: replica -> for whom it goes


def reconcile(
    snapshot: ClusterSnapshot, policy: PlacementPolicy, memory: Memory | None = None
) -> Decision:
    """Return the actions that move the fleet one step toward the catalog.

    Same snapshot, same decision. Every action is safe to repeat and is repeated until the
    nodes report it done, so a crash between planning and doing needs no recovery.

    memory: of the planner that asks, which asks once at a time. It makes the next pass cheap and
    no difference to any.
    """
    if not snapshot.leading or not snapshot.settled:
        return Decision(setbacks=snapshot.setbacks, pressure=snapshot.pressure)
    return _Pass(snapshot, policy, memory or Memory()).run()


class _Pass:
    """One run over the catalog, sharing accounts between its models."""

    def __init__(self, snapshot: ClusterSnapshot, policy: PlacementPolicy, memory: Memory) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.memory = memory
        self.actions: list[Action] = []
        self.unplaced: list[Refusal] = []
        self.waits: list[float] = []
        self.avoided: dict[tuple[str, NodeId], Avoidance] = {}
        self.ports: set[tuple[str, int]] = set()
        self.setbacks: dict[ModelName, Setback] = {}
        self.pressure: dict[ModelName, Pressure] = {}
        self.fulfilled: set[ModelName] = set()
        self.victims: dict[str, ModelName] = {}
        self.number = snapshot.next_number
        self._going: set[ReplicaId] = set()
        self._woken: set[ReplicaId] = set()
        self._placer: Placer | None = None

    @property
    def placer(self) -> Placer:
        # Most passes place nothing, and the accounts of a large fleet are not free to build.
        if self._placer is None:
            self._placer = Placer(self.snapshot, self.policy, self.memory)
        return self._placer

    def run(self) -> Decision:
        self.memory.begin(self.snapshot)
        records_of = dict(self.snapshot.by_model)
        moving: list[tuple[Model, Sequence[ReplicaRecord]]] = []
        for model in self.snapshot.models:
            records = records_of.pop(model.name, ())
            waited_for = model.name in self.snapshot.wanted
            rest = None if waited_for else self.memory.rest_of(model, records)
            if rest is None or not self._rests(rest):
                moving.append((model, records))
        for model, records in sorted(moving, key=lambda item: urgency(self.snapshot, item[0])):
            before = self._extent()
            parts = self._model(model, records)
            if self._extent() == before:
                self.memory.note_rest(model, records, parts)
        for records in records_of.values():
            for record in records:
                self._leave(record, "the model left the catalog")
        return Decision(
            plan=Plan(
                actions=tuple(self.actions),
                unplaced=tuple(self.unplaced),
                recheck_after_s=min(self.waits, default=None),
            ),
            avoided=self.avoided,
            blocked_ports=frozenset(self.ports),
            setbacks=self.setbacks,
            pressure=self.pressure,
            fulfilled=frozenset(self.fulfilled),
            victims=self.victims,
        )

    def _extent(self) -> tuple[int, ...]:
        """Return what grows with anything that is found to do, to wait for or to remember."""
        lists = (self.actions, self.unplaced, self.waits, self.avoided, self.ports, self.setbacks)
        found: tuple[Sized, ...] = (*lists, self.pressure, self.fulfilled, self._going)
        return tuple(map(len, found))

    def _rests(self, rest: Rest) -> bool:
        """Return whether load, too, asks for nothing of a model for which there was nothing to do."""
        for part, roles in rest.follows_load:
            target = target_of(self.snapshot, part, roles)
            if target.count != len(roles.fresh) or target.recheck_after_s is not None:
                return False
            if target.pressure != NO_PRESSURE:
                return False
        return True

    def _model(
        self, model: Model, records: Sequence[ReplicaRecord]
    ) -> Sequence[tuple[Model, Roles]]:
        """Take one step with a model; return its parts with their replicas sorted."""
        parts = parts_of(model)
        shares = zip(parts, share_out(parts, records), strict=True)
        sorted_out = [(part, roles_of(self.snapshot, part, mine)) for part, mine in shares]
        self._forget_waiters(model, [roles for _, roles in sorted_out])
        for part, roles in sorted_out:
            self._part(part, roles)
        return sorted_out

    def _part(self, model: Model, roles: Roles) -> None:
        """Take one step with a model, or with one role of it."""
        for record in roles.leaving:
            self._leave(record, "its agent stops it, with no order from here")
        for record in roles.dead:
            self._give_up(record)
        for record in roles.fresh:
            self._repeat_start(record)
            if (change := adapt(self.snapshot, model, record)) is not None:
                self.actions.append(change)
                self.waits.append(self.snapshot.limits.resend_after)
        self._keep_asleep(model, roles)
        target = target_of(self.snapshot, model, roles)
        if target.pressure != NO_PRESSURE:
            self.pressure[key_of(model)] = target.pressure
        if target.recheck_after_s is not None:
            self.waits.append(target.recheck_after_s)
        surplus = len(roles.fresh) - target.count
        if surplus > 0:
            for record in sorted(roles.fresh, key=self._worth)[:surplus]:
                self._leave(record, f"{target.count} wanted: {target.because}")
        elif surplus < 0:
            self._start(model, roles, -surplus, target.because)
        self._retire(roles, target.count)
        self._evacuate(roles)

    def _start(self, model: Model, roles: Roles, missing: int, because: str) -> None:
        known = {**self.snapshot.avoided, **self.avoided}
        if (refusal := failed_rollout(self.snapshot, model, roles, known)) is not None:
            self.unplaced.append(refusal)
            self._remember(model, refusal)
            return
        if roles.old:
            # Beside old ones that serve, new ones come a few at a time.
            coming = sum(not is_serving(item) for item in roles.fresh)
            paced = max(self.snapshot.limits.surge - coming, missing - len(roles.old))
            missing = min(missing, max(0, paced))
        held = held_back(self.snapshot, model) if missing and not self.avoided else None
        if held is not None:
            self.unplaced.append(held.refusal)
            self.setbacks[key_of(model)] = held
            self.waits.append(held.until - self.snapshot.now)
            return
        counts = count_by_profile(roles.fresh)
        for _ in range(missing):
            if self._wake(roles, because):
                continue
            name = replica_id(model.name, self.snapshot.term, self.number)
            profiles = in_turn(model, counts)
            answer = place_model(self.placer, model, profiles, name)
            if isinstance(answer, Refusal) and self.placer.lend():
                answer = place_model(self.placer, model, profiles, name)
            if isinstance(answer, Refusal):
                if not self._make_room(model, roles):
                    self._evict(model, roles)
                self.unplaced.append(answer)
                self._remember(model, answer)
                return
            self.number += 1
            counts[answer.profile.name] += 1
            self.actions.append(
                StartReplica(
                    replica=name,
                    model=model.name,
                    profile=answer.profile.name,
                    shards=answer.shards,
                    because=f"{because}; {answer.because}",
                )
            )

    def _wake(self, roles: Roles, because: str) -> bool:
        """Wake a replica that sleeps where nobody uses its devices; False if there is none."""
        for record in roles.asleep:
            if (
                record.id not in self._going
                and record.id not in self._woken
                and record.replica.state is ReplicaState.SLEEPING
                and self.placer.wake(record)
            ):
                self._woken.add(record.id)
                self.actions.append(WakeReplica(replica=record.id, because=because))
                self.waits.append(self.snapshot.limits.resend_after)
                return True
        return False

    def _keep_asleep(self, model: Model, roles: Roles) -> None:
        """Let those sleep on that could serve again, and end the others."""
        spare = len(roles.fresh) + len(roles.asleep) - model.replicas.max
        for record in roles.asleep:
            step = rest(self.snapshot, model, record, is_spare=spare > 0)
            if isinstance(step.action, StopReplica):
                spare -= 1
                self._going.add(record.id)
            self._take(step)

    def _make_room(self, model: Model, roles: Roles) -> bool:
        """No room beside the old version: let one of it go first, never more than one at a time.

        Those that are old only because their node is being emptied would make none.
        """
        coming = any(not is_serving(item) for item in roles.fresh)
        former = [item for item in roles.old if self.snapshot.profile_of(model, item) is None]
        if not former or coming or roles.leaving:
            return bool(former)
        self._leave(min(former, key=self._worth), "makes room for its replacement")
        return True

    def _evict(self, model: Model, roles: Roles) -> None:
        """Nothing of the model runs: put others to sleep for it, if there are any that may."""
        if (
            roles.fresh
            or roles.old
            or any(
                record.order is not None
                and record.order.victim_for == model.name
                and record.replica.state is not ReplicaState.SLEEPING
                for record in self.snapshot.replicas
            )
        ):
            return  # it serves, or its room is being made already
        eviction = propose_eviction(self.placer, model, spared=frozenset(self.victims))
        if eviction is None:
            return
        for record in eviction.victims:
            self.victims[record.id] = model.name
            self._leave(record, f"makes room for {model.name}")

    def _evacuate(self, roles: Roles) -> None:
        """Let go what is still on a node that should have been empty by now."""
        for record in roles.old:
            ends = [
                node.drain_ends
                for name in record.nodes
                if (node := self.snapshot.nodes.get(name)) is not None and node.draining
            ]
            if not ends:
                continue
            if (left_s := min(ends) - self.snapshot.now) > 0:
                self.waits.append(left_s)
            else:
                self._leave(record, "its node is being emptied, and no room was found in time")

    def _retire(self, roles: Roles, target: int) -> None:
        """Let old ones go that are not needed any more to serve `target` times."""
        serving = sum(is_serving(item) for item in (*roles.fresh, *roles.old))
        for record in sorted(roles.old, key=self._worth):
            if record.id in self._going:
                serving -= is_serving(record)
        for record in sorted(roles.old, key=self._worth):
            if record.id in self._going:
                continue
            if is_serving(record):
                if serving <= target:
                    break
                serving -= 1
            self._leave(record, "replaced")

    def _remember(self, model: Model, refusal: Refusal) -> None:
        setback = setback_after(self.snapshot, model, refusal)
        self.setbacks[key_of(model)] = setback
        self.waits.append(setback.until - self.snapshot.now)

    def _give_up(self, record: ReplicaRecord) -> None:
        """Stop a replica that will not come back where it is, and keep its version off that place."""
        failure, shard = failure_of(record), failed_shard(record)
        cause = failure.cause if failure else None
        if record.replica.state is not ReplicaState.STOPPED and shard is not None:
            if cause is FailureCause.PORT_IN_USE:
                machine = self.snapshot.nodes[shard.node].machine
                self.ports |= {(machine, port) for port in shard.ports}
            elif cause is not FailureCause.SLEEP_FAILED:
                self._avoid(record.replica.spec_hash, shard.node, record)
        message = failure.sentence if failure else record.replica.reason
        self._leave(record, message or "it failed")

    def _avoid(self, hashed: str, node: NodeId, record: ReplicaRecord) -> None:
        avoidance = avoidance_after(self.snapshot, hashed, node, failure_of(record))
        self.avoided[hashed, node] = avoidance
        self.waits.append(avoidance.until - self.snapshot.now)

    def _repeat_start(self, record: ReplicaRecord) -> None:
        """Order again what its node has not reported; what it has reported is the node's to run."""
        if record.order is None or record.order.intent is not Intent.RUN:
            return
        missing = tuple(
            (node, spec)
            for node, spec in record.shards
            if spec.id not in record.reports and self.snapshot.nodes[node].session is not None
        )
        if missing:
            self.waits.append(self.snapshot.limits.resend_after)
            self.actions.append(
                StartReplica(
                    replica=record.id,
                    model=record.replica.model,
                    profile=record.replica.profile,
                    shards=missing,
                    because=record.order.because,
                )
            )

    def _forget_waiters(self, model: Model, parts: Sequence[Roles]) -> None:
        wanted = self.snapshot.wanted.get(model.name)
        if wanted is None:
            return
        served = all(
            any(item.replica.state is ReplicaState.READY for item in roles.serving)
            for roles in parts
        )
        if served or (is_stale(wanted, self.snapshot.now) and not is_wanted(self.snapshot, model)):
            self.fulfilled.add(model.name)

    def _leave(self, record: ReplicaRecord, because: str) -> None:
        if record.id in self._going:
            return
        self._going.add(record.id)
        self._take(leave(self.snapshot, record, because))

    def _take(self, step: Step) -> None:
        if step.action is not None:
            self.actions.append(step.action)
        if step.recheck_after_s is not None:
            self.waits.append(step.recheck_after_s)

    def _worth(self, record: ReplicaRecord) -> tuple[bool, bool, int, float, str]:
        return worth(self.snapshot, record)
