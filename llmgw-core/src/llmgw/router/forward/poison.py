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

    def judge(is_away: bool) -> None:
        now = parts.selector.state(reservation.endpoint.id)
        # One that was told to go has not died of anything.
        was_stopped = now is None or now.endpoint.draining
        is_another = now is not None and now is not reservation.state
        if is_another or (is_away and not was_stopped):
            verdict(parts.quarantine.died(request, parts.clock.monotonic()))
        else:
            verdict(0)

    def unreachable(why: Unreachable) -> None:
        judge(why.is_away)

    def there(connection: EngineConnection) -> None:
        connection.close()
        judge(False)

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
