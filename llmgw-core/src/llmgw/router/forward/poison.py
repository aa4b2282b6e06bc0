"""Requests that engines die of, told apart by a sample of their bytes."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.errors import RequestError
from llmgw.router.forward.parts import ForwardParts
from llmgw.router.pool import EngineConnection, Opening, Unreachable
from llmgw.router.selection import Reservation
from llmgw.router.selection.quarantine import fingerprint

_HEAD = 2048
_TAIL = 6144


def sample_of(body: bytes | bytearray) -> bytes:
    """Return what tells this body from others, small enough to be kept during a stream.

    The head is mostly a system prompt, the tail the newest message: the two that differ.
    """
    if len(body) <= _HEAD + _TAIL:
        return bytes(body)
    return b"%b%d%b" % (bytes(body[:_HEAD]), len(body), bytes(body[-_TAIL:]))


def fingerprint_of(path: str, sample: bytes) -> bytes:
    """Return the fingerprint by which the quarantine knows a request."""
    return fingerprint(path, sample)


def examine(
    parts: ForwardParts,
    reservation: Reservation,
    request: bytes,
    verdict: Callable[[int], None],
) -> Opening:
    """Find out whether an engine that cut a request off has died, by connecting to it.

    A connection that breaks is no death: an engine that is there, in the same incarnation, has
    only hung up. request: its fingerprint, against which a death is counted. verdict: called
    later with the deaths of that request so far; 0 if the engine lives.
    """

    def dead() -> None:
        verdict(parts.quarantine.died(request, parts.clock.monotonic()))

    def unreachable(why: Unreachable) -> None:
        if why.is_away:
            dead()
        else:
            verdict(0)

    def there(connection: EngineConnection) -> None:
        connection.close()
        now = parts.selector.state(reservation.endpoint.id)
        if now is not None and now is not reservation.state:
            dead()  # and somebody has started another one
        else:
            verdict(0)

    return parts.pool.open(reservation.endpoint, there, unreachable)


def quarantined() -> RequestError:
    """Return the refusal of a request that two engines have died of."""
    return RequestError(
        "Two engines died while they worked on this request, so it is not tried again for ten "
        "minutes.",
        status=500,
        code="request_quarantined",
        kind="api_error",
    )
