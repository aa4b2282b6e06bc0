"""Requests that engines die of, told apart by a sample of their bytes."""

from __future__ import annotations

from llmgw.errors import RequestError
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


def quarantined() -> RequestError:
    """Return the refusal of a request that two engines have died of."""
    return RequestError(
        "Two engines died while they worked on this request, so it is not tried again for ten "
        "minutes.",
        status=500,
        code="request_quarantined",
        kind="api_error",
    )
