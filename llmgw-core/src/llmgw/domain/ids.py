"""Names and identities, and the one place that says which names are allowed."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

ModelName = NewType("ModelName", str)  #: what a client asks for; may hold `/`, `:` and `@`
ProfileName = NewType("ProfileName", str)
ReplicaId = NewType("ReplicaId", str)  #: safe as a file name
ShardId = NewType("ShardId", str)  #: `<replica id>.<rank>`; safe as a file name
NodeId = NewType("NodeId", str)  #: safe as a file name
DeviceId = NewType("DeviceId", str)  #: the vendor's UUID; never an index (C048)
EndpointId = NewType("EndpointId", str)
Epoch = NewType("Epoch", int)  #: number of a leadership; a newer one always wins
SessionId = NewType("SessionId", str)  #: `<agent boot id>/<counter>`

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,254}")


def safe_name_problem(name: str) -> str | None:
    """Return why `name` cannot name a node, profile or pool; None if it can."""
    if SAFE_NAME.fullmatch(name):
        return None
    return f"must be 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit, got {name!r}"


def model_name_problem(name: str) -> str | None:
    """Return why `name` cannot name a model; None if it can.

    Slashes are allowed, as hubs use them, but no segment may be empty, `.` or `..`: such a
    name would become a path outside its folder somewhere (C053).
    """
    if not _MODEL_NAME.fullmatch(name):
        return (
            "must be 1 to 255 letters, digits or '._:/@+-', the first a letter or digit, "
            f"got {name!r}"
        )
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        return f"must not have an empty, '.' or '..' part between slashes, got {name!r}"
    return None


def slug(name: str) -> str:
    """Return a file-name-safe form of a model name, distinct for distinct names."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    if plain == name:
        return plain
    return f"{plain or 'model'}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def replica_id(model: ModelName, term: int, number: int) -> ReplicaId:
    """Return the id of a new replica.

    The leadership's term is part of it, so that a replica on a node which the planner does
    not know of yet (it was away when this leadership began) can never share an id with a new one.
    """
    return ReplicaId(f"{slug(model)}-{term}-{number}")


def shard_id(replica: ReplicaId, rank: int) -> ShardId:
    """Return the id of the shard of `replica` with this rank."""
    return ShardId(f"{replica}.{rank}")
