"""Who may try to lead. Safety comes from the epoch, not from the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmgw.domain.ids import Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A leadership, held now."""

    holder: str
    epoch: Epoch
    term: int
    limit_s: float  #: how long after the start of the last good renewal the holder may act


def named_holder(server: str, admin_url: str) -> str:
    """Return what a server calls itself as a holder: with where operators reach it."""
    return f"{server}{_AT}{admin_url}"


def admin_url_of(holder: str) -> str | None:
    """Return where operators reach a holder; None: it has not said so."""
    return holder.partition(_AT)[2] or None


_AT = " at "


class LeaseStore(Protocol):
    """Grants at most one lease at a time, by its own clock. Called on a thread of its own."""

    @property
    def name(self) -> str: ...

    def acquire(self, holder: str) -> Lease | None:
        """Take the lease if it is free or run out; None if another holds it."""
        ...

    def renew(self, lease: Lease) -> bool:
        """Extend it; False if it is no longer ours, which ends the leadership at once."""
        ...

    def release(self, lease: Lease) -> None:
        """Give it back, so that another need not wait for it to run out."""
        ...

    def leader(self) -> str | None:
        """Return who holds it now."""
        ...
