"""Large bodies made short, so that reading them costs no more than reading small ones.

A body is large because of a string in it: a document, or an image in base64. Between its quotes
nothing can change what the rest of the body says, so most of it is left out before the body is
read; the engine gets it whole.
"""

from __future__ import annotations

import re

LONG_STRING = 8 * 1024  #: whose leaving out is worth its price
_BACKSLASH = ord("\\")
# Six bytes without a backslash: behind them no escape is under way, not even half of a
# surrogate pair, so that a string may be cut there.
_BETWEEN_ESCAPES = re.compile(rb'[^"\\]{6}')
_SEARCHED = 256
_LONGEST_RUN = 64


def abridged(body: bytes | bytearray, kept: int) -> bytes | bytearray:
    """Return a body that has the same fields and values, but for long strings: of those only the
    beginning is left.

    kept: how many bytes of each string are left at least. Finding the quotes costs less than
    reading the body only where they are rare, so a body with many is returned as it is; so is
    one that is no JSON, or has long runs of backslashes, from where that shows.
    """
    find = body.find
    patience = len(body) // 1024
    parts = []
    begun = at = 0
    while patience > 0 and (opening := find(b'"', at)) >= 0:
        closing = find(b'"', opening + 1)
        while (
            closing > 0 and body[closing - 1] == _BACKSLASH and (run := _run_before(body, closing))
        ):
            patience -= 1
            if run == _LONGEST_RUN:
                patience = 0
            if not patience or run % 2 == 0:
                break
            closing = find(b'"', closing + 1)
        if closing < 0 or not patience:
            break
        if closing - opening > kept + LONG_STRING:
            start = opening + 1 + kept
            place = _BETWEEN_ESCAPES.search(body, start, start + _SEARCHED)
            if place is not None:
                parts.append(body[begun : place.end()])
                begun = closing
        at = closing + 1
        patience -= 1
    return b"".join((*parts, body[begun:])) if parts else body


def _run_before(body: bytes | bytearray, quote: int) -> int:
    """Return how many backslashes stand before a quote, `_LONGEST_RUN` at most: looking for the
    beginning of longer ones would let a client buy seconds of this process with one body.
    """
    before = body[max(0, quote - _LONGEST_RUN) : quote]
    return len(before) - len(before.rstrip(b"\\"))
