"""The catalog: what is in force, and how it came to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from llmgw.adminapi.explain import PlanReply
from llmgw.adminapi.reply import WHOLE, Reply, Request
from llmgw.domain.catalog import Model


class CatalogEntryReply(Reply):
    """One model in force."""

    name: str
    owner: str
    version: int
    model: Mapping[str, Any]
    """The entry as it would be written in a file; defaults left out."""


class CatalogReply(Reply):
    """All entries. `version` is also the ETag."""

    version: int
    entries: tuple[CatalogEntryReply, ...]


class ChangeReply(Reply):
    """One line of history."""

    version: int
    name: str
    owner: str
    who: str
    at: float
    model: Mapping[str, Any] | None
    """null: removed by this change."""


class HistoryReply(Reply):
    changes: tuple[ChangeReply, ...]
    next: str | None = None
    """Pass as `before` for older ones; null at the beginning."""


class ApplyRequest(Request):
    """Models to put, and names to remove, all or none."""

    models: tuple[Model, ...] = ()
    remove: tuple[str, ...] = ()


class EntryRequest(Request):
    """One entry to put."""

    model: Model


class RollbackRequest(Request):
    version: Annotated[int, Field(ge=0, le=2**53), WHOLE]
    """The catalog's version to go back to."""


class ApplyReply(Reply):
    """What a change of the catalog has changed."""

    version: int
    changes: tuple[ChangeReply, ...]
    plan: PlanReply | None = None
    """What the control plane will do about it; null: none runs here."""
