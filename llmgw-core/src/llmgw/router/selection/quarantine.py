"""Requests that kill engines: two deaths, and nobody sends them on."""

from __future__ import annotations

from hashlib import blake2b

_REFUSED_S = 600.0
_SUSPECTS = 4096
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
    `forward.poison.examine`. A bystander of one death is a suspect for ten minutes, which costs
    it nothing but company. One of two deaths is refused as well: that is the price of at most
    two dead replicas per request, and the reason for sending suspects alone.
    """

    def __init__(self) -> None:
        self._deaths: dict[bytes, tuple[int, float]] = {}

    @property
    def is_empty(self) -> bool:
        """True while nothing is suspected: no request need be hashed then."""
        return not self._deaths

    def died(self, request: bytes, now: float) -> int:
        """Count a death; return how many it makes. After one it may have one more try, alone."""
        count, _ = self._deaths.pop(request, (0, 0.0))
        self._deaths[request] = (count + 1, now + _REFUSED_S)
        while len(self._deaths) > _SUSPECTS:
            del self._deaths[next(iter(self._deaths))]
        return count + 1

    def is_suspect(self, request: bytes, now: float) -> bool:
        """Say whether a replica died with it once: it should be alone on its endpoint."""
        return self._count(request, now) == 1

    def refuses(self, request: bytes, now: float) -> bool:
        """Say whether it has killed two replicas within the last ten minutes."""
        return self._count(request, now) > 1

    def _count(self, request: bytes, now: float) -> int:
        count, until = self._deaths.get(request, (0, 0.0))
        if count and now >= until:
            del self._deaths[request]
            return 0
        return count
