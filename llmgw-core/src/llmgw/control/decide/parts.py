"""A model whose replicas have roles, as one model for each role.

Prefill and decode replicas are placed, scaled, replaced and put to rest each by their own, by the
code that does so for any model. Here is what is different: which replica belongs to which role,
and under which name each role is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmgw.control.decide.roles import is_serving
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord, Setback
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName
from llmgw.domain.roles import Role


def parts_of(model: Model) -> tuple[Model, ...]:
    """Return the model once for each role, with the profiles and the scale of that role.

    The model itself, alone, where its replicas answer whole requests, or if it is such a part.
    """
    if not model.has_roles or len({item.role for item in model.profiles}) == 1:
        return (model,)
    return tuple(
        model.model_copy(
            update={
                "profiles": tuple(item for item in model.profiles if item.role is role),
                "replicas": scale,
                "roles": {},
            }
        )
        for role, scale in zip(Role, model.scales, strict=True)
    )


def part_of(model: Model, role: Role | None) -> Model:
    """Return the part of this role; the model itself where it has no such role."""
    return next((part for part in parts_of(model) if role_of(part) is role), model)


def role_of(part: Model) -> Role | None:
    """Return the role of a part; None for a model without roles."""
    return part.profiles[0].role if part.profiles else None


def key_of(part: Model) -> ModelName:
    """Return the name under which a part is remembered; no model can have it."""
    role = role_of(part)
    return part.name if role is None else ModelName(f"{part.name} {role}")


def keys_of(model: ModelName) -> frozenset[ModelName]:
    """Return every name under which this model, or a part of it, may be remembered."""
    return frozenset({model, *(ModelName(f"{model} {role}") for role in Role)})


def named(part: Model) -> str:
    """Return what people are told of a part: `llama-70b` or `llama-70b (prefill)`."""
    role = role_of(part)
    return part.name if role is None else f"{part.name} ({role})"


def setback_of(snapshot: ClusterSnapshot, model: Model) -> Setback | None:
    """Return why the model, or the first part of it that has a reason, was not placed."""
    found = (snapshot.setbacks.get(key_of(part)) for part in parts_of(model))
    return next((item for item in found if item is not None), None)


def share_out(
    parts: Sequence[Model], records: Iterable[ReplicaRecord]
) -> tuple[tuple[ReplicaRecord, ...], ...]:
    """Return the replicas of each part, in the order of parts.

    What runs since before the model had roles answers whole requests. It counts as an old version
    of the first part that does not serve yet, so that it stays until all of them do.
    """
    if len(parts) == 1:
        return (tuple(records),)
    own: dict[Role | None, list[ReplicaRecord]] = {role_of(part): [] for part in parts}
    whole: list[ReplicaRecord] = []
    for record in records:
        own.get(record.spec.role, whole).append(record)
    if whole:
        unserved = (role for role, mine in own.items() if not any(map(is_serving, mine)))
        own[next(unserved, role_of(parts[-1]))] += whole
    return tuple(tuple(own[role_of(part)]) for part in parts)
