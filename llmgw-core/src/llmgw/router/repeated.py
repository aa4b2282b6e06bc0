"""Heads that come again byte for byte, their declared length aside.

A client sends the same head with every request of a connection, and an engine answers with the
same one. What a parser made of it stays true; only the length and the body are new.
"""

from __future__ import annotations

_LENGTH = b"\r\ncontent-length:"
_END = b"\r\n\r\n"
_DIGITS = 12


class RepeatedHead:
    """A head that a parser has read and found in order."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before  #: up to the colon of `content-length:`
        self._after = after  #: from the end of that line

    @staticmethod
    def parts(data: bytes, length: int) -> tuple[bytes, bytes] | None:
        """Return what to remember of a message that came in one read, alone; None if it did not.

        length: as the parser has read it.
        """
        end = data.find(_END) + len(_END)
        lowered = data[:end].lower()
        start = lowered.find(_LENGTH) + len(_LENGTH)
        if len(data) != end + length or lowered.count(_LENGTH) != 1:
            return None
        return data[:start], data[data.index(b"\r\n", start) : end]

    def body(self, data: bytes) -> bytes | None:
        """Return the body of a message that is nothing but this head and its whole body."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + _DIGITS)
        if end < 0 or not data.startswith(self._after, end):
            return None
        begin = end + len(self._after)
        # Compared as written: a length that is spelt in another way is for the parser to judge.
        return data[begin:] if data[start:end] == b" %d" % (len(data) - begin) else None
