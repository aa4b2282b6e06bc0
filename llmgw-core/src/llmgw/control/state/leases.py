"""Whether this server leads, as a value with an end."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.contracts.leases import Lease
from llmgw.domain.ids import Epoch


class Leadership:
    """The lease held now, if any. Safety comes from the epoch; this only says who may try."""

    def __init__(self) -> None:
        self.leader: str | None = None  #: as far as is known
        self.highest_epoch = Epoch(0)
        self._lease: Lease | None = None
        self._until = 0.0

    def held(self, lease: Lease, *, since: float) -> None:
        """Note a lease taken or renewed by a call that began at `since`."""
        self._lease, self._until = lease, since + lease.limit_s
        self.leader = lease.holder
        self.highest_epoch = max(self.highest_epoch, lease.epoch)

    def lost(self, leader: str | None) -> None:
        """Note that this server does not lead, but perhaps another does."""
        self._lease, self.leader = None, leader

    def lease(self, now: float) -> Lease | None:
        """Return the lease while it may be acted on, by this machine's own steady clock."""
        return self._lease if self._lease is not None and now < self._until else None

    def seen_epoch(self, epoch: Epoch) -> None:
        """Note an epoch that a node has heard of."""
        self.highest_epoch = max(self.highest_epoch, epoch)


@dataclass(slots=True)
class MemoryLeases:
    """For one server that has no store to share: it always leads, with the epoch it is given.

    A term must be above all earlier ones of the same nodes, so callers without a store take it
    from the wall clock; agents refuse an older one.
    """

    term: int = 1
    name: str = "memory"
    _holder: str | None = None

    def acquire(self, holder: str) -> Lease | None:
        if self._holder not in (None, holder):
            return None
        self._holder = holder
        return Lease(holder=holder, epoch=Epoch(self.term), term=self.term, limit_s=15.0)

    def renew(self, lease: Lease) -> bool:
        return self._holder == lease.holder and lease.term == self.term

    def release(self, lease: Lease) -> None:
        if self.renew(lease):
            self._holder = None
            self.term += 1

    def leader(self) -> str | None:
        return self._holder
