"""Requests that kill engines: two deaths, and nobody sends them on."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from llmgw.router.selection.state import Death, EndpointState

_REFUSED_S = 600.0
_MOST = 2048
_SAMPLE = 65536


def fingerprint(path: str, body: bytes) -> bytes:
    """Return what tells this request from others: hashing all of a huge body would hold the loop."""
    digest = blake2b(path.encode(), digest_size=16)
    digest.update(len(body).to_bytes(8))
    digest.update(body[:_SAMPLE])
    digest.update(body[-_SAMPLE:])
    return digest.digest()


class Quarantine:
    """Fingerprints of requests that were in flight when a replica died.

    A death is a connection that broke and an engine that is not there any more: see
    `forward.deaths`. A bystander of one death is a suspect for ten minutes or until an engine has
    answered it, which costs it nothing but company: copies of it run where one of them runs, so
    that they can kill one engine more, and not as many as there are copies. One of two deaths is
    refused: that is the price of at most two dead replicas per request.
    """

    def __init__(self) -> None:
        # By fingerprint the newest death, the oldest first. No more than that is kept of each:
        # there are as many as an engine had requests in flight.
        self._suspects: dict[bytes, Death] = {}
        self._refused: dict[bytes, Death] = {}
        self._running: dict[bytes, dict[EndpointState, int]] = {}

    @property
    def is_empty(self) -> bool:
        """True while nothing is suspected: no request need be hashed then."""
        return not self._suspects and not self._refused

    def died(self, request: bytes, death: Death) -> int:
        """Count a death, once however many copies were in flight; return how many it makes, 2 at most.

        After one death it may have one more try, alone.
        """
        before = self._suspects.pop(request, None)
        has_killed = request in self._refused or (before is not None and before is not death)
        kept = self._refused if has_killed else self._suspects
        kept.pop(request, None)
        kept[request] = death
        if len(kept) > _MOST:
            del kept[next(iter(kept))]
        return 2 if has_killed else 1

    def is_suspect(self, request: bytes, now: float) -> bool:
        """Say whether a replica died with it once: it should be alone on its endpoint."""
        _forget_old(self._suspects, now)
        return request in self._suspects

    def refuses(self, request: bytes, now: float) -> bool:
        """Say whether it has killed two replicas within the last ten minutes."""
        _forget_old(self._refused, now)
        return request in self._refused

    def company(self, suspect: bytes) -> Collection[EndpointState]:
        """Return where copies of a suspect run now; empty: nowhere."""
        return self._running.get(suspect, ())

    def began(self, suspect: bytes, state: EndpointState) -> None:
        """A suspect has been given a slot."""
        where = self._running.setdefault(suspect, {})
        where[state] = where.get(state, 0) + 1

    def ended(self, suspect: bytes, state: EndpointState, *, is_answered: bool) -> None:
        """It has given the slot back. is_answered: whole, so it was not what the engine died of."""
        where = self._running[suspect]
        where[state] -= 1
        if not where[state]:
            del where[state]
            if not where:
                del self._running[suspect]
        if is_answered:
            self._suspects.pop(suspect, None)


def _forget_old(deaths: dict[bytes, Death], now: float) -> None:
    while deaths:
        oldest = next(iter(deaths))
        if now < deaths[oldest].at + _REFUSED_S:
            return
        del deaths[oldest]
