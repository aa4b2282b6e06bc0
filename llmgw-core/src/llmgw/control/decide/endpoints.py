"""What routers should know: endpoints that serve, and the state of each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from llmgw.control.decide.adapters import adapter_statuses, served_adapters
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.parts import key_of, named, parts_of, role_of, share_out
from llmgw.control.decide.roles import failure_of, is_serving, roles_of
from llmgw.control.decide.snapshot import ClusterSnapshot, Engine, ReplicaRecord
from llmgw.control.decide.targets import is_wanted
from llmgw.domain.catalog import Model
from llmgw.domain.commands import ShardSpec
from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, ModelName, ReplicaId
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import Failure, ReplicaState, ShardState
from llmgw.domain.reports import ShardReport
from llmgw.domain.roles import Role

_ANSWERS = frozenset({ShardState.READY, ShardState.DRAINING})


@dataclass(frozen=True, slots=True)
class _Made:
    """Endpoints of one model, and what they were made of."""

    model: Model | None
    records: Sequence[ReplicaRecord]
    endpoints: Sequence[Endpoint | None]  #: of each record; None: it does not serve
    roles: frozenset[Role | None]  #: of those that take new requests
    adapters: frozenset[ModelName]  #: that these have loaded


@dataclass(slots=True)
class MadeEndpoints:
    """What was made at earlier looks. Whoever keeps it hands it in again.

    What nothing has changed about is taken over: on a large fleet one change must not cost five
    thousand endpoints.
    """

    models: dict[ModelName, _Made] = field(default_factory=dict)
    statuses: dict[ModelName, tuple[Model, ModelStatus]] = field(default_factory=dict)

    def status(
        self,
        model: Model,
        state: ModelState,
        refusal: Refusal | None,
        wait_s: float | None,
        created: int,
    ) -> ModelStatus:
        """Return the status that says this: mostly the one that said so last time."""
        known, said = self.statuses.get(model.name, (None, None))
        if (
            said is not None
            and known is model
            and (said.state, said.refusal) == (state, refusal)
            and (said.expected_wait_s, said.created) == (wait_s, created)
        ):
            return said
        status = ModelStatus(
            names=model.names,
            state=state,
            expected_wait_s=wait_s,
            refusal=refusal,
            routing=model.routing,
            created=created,
        )
        self.statuses[model.name] = (model, status)
        return status


def find_endpoints(
    snapshot: ClusterSnapshot, *, made: MadeEndpoints | None = None
) -> tuple[Endpoint, ...]:
    """Return every endpoint by id, those that only finish their open streams marked as draining.

    made: of earlier calls; it is brought up to date.

    Only what this incarnation's own report showed ready is published. A silent node's endpoints
    stay, since its engines most likely serve; a lost node's stay until a replacement is ready.
    What left the catalog takes no new request from that moment, though it may still run.
    """
    models = {} if made is None else made.models
    found: list[Endpoint] = []
    for name, records in snapshot.by_model.items():
        model, before = snapshot.model(name), models.get(name)
        if before is None or before.model is not model or before.records != records:
            models[name] = before = _make(snapshot, model, records, before)
        found += [endpoint for endpoint in before.endpoints if endpoint is not None]
    for name in models.keys() - snapshot.by_model.keys():
        del models[name]
    return tuple(sorted(found, key=attrgetter("id")))


def _make(
    snapshot: ClusterSnapshot,
    model: Model | None,
    records: Sequence[ReplicaRecord],
    before: _Made | None,
) -> _Made:
    """Make the endpoints of one model; those of replicas that are as they were are kept."""
    kept: dict[ReplicaId, tuple[ReplicaRecord, Endpoint | None]] = {}
    if before is not None and before.model is model:
        pairs = zip(before.records, before.endpoints, strict=True)
        kept = {record.id: (record, endpoint) for record, endpoint in pairs}
    replaced = {
        item.spec.role
        for item in records
        if item.replica.state is ReplicaState.READY and not item.leaving
    }
    endpoints: list[Endpoint | None] = []
    for record in records:
        known = kept.get(record.id)
        if record.replica.state is ReplicaState.LOST:
            # Whether it stays depends on the others, too.
            known = (record, None) if record.spec.role in replaced else None
        if known is None or known[0] is not record:
            report = _serving_report(snapshot, record)
            known = (record, _endpoint(snapshot, model, record, report) if report else None)
        endpoints.append(known[1])
    taking = [item for item in endpoints if item is not None and not item.draining]
    return _Made(
        model,
        records,
        endpoints,
        roles=frozenset(item.role for item in taking),
        adapters=frozenset(name for item in taking for name in item.adapters),
    )


def _serving_report(snapshot: ClusterSnapshot, record: ReplicaRecord) -> ShardReport | None:
    """Return the report of the shard that clients reach, if the whole replica answers."""
    if len(record.reports) < len(record.shards):
        return None
    if any(report.shard.state not in _ANSWERS for report in record.reports.values()):
        return None
    engine = snapshot.engines.get(record.spec.engine)
    rank = engine.traits.serves_on_rank if engine else 0
    _, spec = record.shards[min(rank, len(record.shards) - 1)]
    report = record.reports[spec.id]
    return report if report.url else None


def _endpoint(
    snapshot: ClusterSnapshot, model: Model | None, record: ReplicaRecord, report: ShardReport
) -> Endpoint:
    spec = report.spec
    # What the router alone acts on follows the catalog at once, without a new replica.
    profile = model.profile(spec.profile) if model else None
    names = model.names if model else spec.served_names
    engine = snapshot.engines.get(spec.engine)
    draining = model is None or record.leaving or report.shard.state is ShardState.DRAINING
    return Endpoint(
        id=EndpointId(record.id),
        url=(report.url or "").rstrip("/"),
        models=names,
        engine=spec.engine,
        pool=profile.pool if profile else spec.pool,
        weight=profile.weight if profile else spec.weight,
        priority=profile.priority if profile else spec.priority,
        incarnation=f"{report.shard.id}#{report.shard.incarnation}",
        credential=report.credential,
        health_path=engine.traits.health_path if engine else "/health",
        metrics_path=engine.traits.metrics_path if engine else None,
        max_inflight=profile.max_inflight if profile else spec.max_inflight,
        served_name=None if spec.served_names == names else spec.served_names[0],
        cancels_plain_requests=engine.traits.cancels_plain_requests if engine else True,
        node=report.shard.node,
        replica=record.id,
        draining=draining,
        adapters=served_adapters(engine, profile, report),
        role=spec.role,
        meeting_port=_meeting_port(engine, spec),
    )


def _meeting_port(engine: Engine | None, spec: ShardSpec) -> int | None:
    """Return where decode engines meet this one, if that is for the router to tell them."""
    place = engine.traits.meeting_port if engine else None
    if spec.role is not Role.PREFILL or place is None or place >= len(spec.ports):
        return None
    return spec.ports[place]


def model_statuses(
    snapshot: ClusterSnapshot,
    made: MadeEndpoints,
    *,
    wake_s: Mapping[ModelName, float],
    created: Mapping[ModelName, int],
) -> tuple[ModelStatus, ...]:
    """Return one status per catalog entry, in catalog order.

    made: what `find_endpoints` has found. wake_s: measured seconds from order to ready. created:
    Unix seconds of the entry.
    """
    found: list[ModelStatus] = []
    for model in snapshot.models:
        serving = made.models.get(model.name)
        state, refusal = ModelState.SERVING, None
        if serving is None or None not in serving.roles:
            roles = serving.roles if serving is not None else frozenset()
            records = snapshot.replicas_of(model.name)
            if model.has_roles:
                parts = parts_of(model)
                missing = [
                    _without_endpoint(snapshot, part, mine)
                    for part, mine in zip(parts, share_out(parts, records), strict=True)
                    if role_of(part) not in roles
                ]
                state, refusal = max(missing, key=_how_far, default=(state, refusal))
            else:
                state, refusal = _without_endpoint(snapshot, model, records)
        status = made.status(
            model, state, refusal, wake_s.get(model.name), created.get(model.name, 0)
        )
        found.append(status)
        loaded = serving.adapters if serving is not None else frozenset()
        found += adapter_statuses(snapshot, model, loaded, status)
    if len(made.statuses) > len(snapshot.models):
        made.statuses = {model.name: made.statuses[model.name] for model in snapshot.models}
    return tuple(found)


def _how_far(found: tuple[ModelState, Refusal | None]) -> int:
    """Order what the roles of a model lack: one does not serve without the other."""
    return (ModelState.ASLEEP, ModelState.WAKING, ModelState.UNPLACEABLE).index(found[0])


def _without_endpoint(
    snapshot: ClusterSnapshot, model: Model, records: Sequence[ReplicaRecord]
) -> tuple[ModelState, Refusal | None]:
    """Return whether a request may wait, or why not. model: perhaps one role of it."""
    if not model.profiles:
        return ModelState.UNPLACEABLE, Refusal(
            code=Code.NO_PROFILE,
            sentence=f"{model.name} declares no profile and no static endpoint serves it",
            model=model.name,
            hint="add a profile to the entry, or a static endpoint that serves it",
        )
    if not snapshot.settled:
        return ModelState.WAKING, None
    roles = roles_of(snapshot, model, records)
    coming = [item for item in roles.fresh if not is_serving(item)]
    if coming:
        failures = [failure for item in coming if (failure := _start_failure(item)) is not None]
        if len(failures) < len(coming):
            return ModelState.WAKING, None
        return ModelState.UNPLACEABLE, _start_failed(model, failures[0])
    setback = snapshot.setbacks.get(key_of(model))
    # A request that arrives while the model stops waits for the room that is about to be free.
    if setback is not None and not roles.leaving and not _room_is_coming(snapshot, model):
        return ModelState.UNPLACEABLE, setback.refusal
    if not model.replicas.min and not is_wanted(snapshot, model):
        return ModelState.ASLEEP, None
    return ModelState.WAKING, None


def _start_failure(record: ReplicaRecord) -> Failure | None:
    """Return why the replica fails, if it has never been ready.

    One that was ready and crashed is most likely back within seconds, so requests wait for it. One
    that never was would hold each client up to the limit, only to refuse it then.
    """
    return failure_of(record) if record.replica.first_ready is None else None


def _start_failed(model: Model, failure: Failure) -> Refusal:
    return Refusal(
        code=Code.START_FAILED,
        sentence=f"{named(model)} does not start: {failure.sentence}",
        model=model.name,
        hint=failure.hint or f"`llmgw ctl replicas` shows its last lines for {model.name}",
    )


def _room_is_coming(snapshot: ClusterSnapshot, model: Model) -> bool:
    """Return whether another replica is on its way out to make room for this model."""
    return any(
        record.order is not None
        and record.order.victim_for == model.name
        and record.replica.state is not ReplicaState.SLEEPING
        for record in snapshot.replicas
    )
