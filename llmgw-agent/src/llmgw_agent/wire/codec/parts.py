"""Frames that are too large for one message travel in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from llmgw_agent.wire.frames import MalformedFrame

# gRPC kills the stream at 4 MiB (wire/options.py); pieces a quarter of that keep a frame of
# control from waiting long behind one.
MAX_MESSAGE = 1 << 20
_PIECE = MAX_MESSAGE - 64  # room for the Part around it
# Far above any true registration; below what a peer gone mad could make us hold.
MAX_FRAME = 32 << 20


def pieces(frame: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield (piece, whether it is the last)."""
    if len(frame) > MAX_FRAME:
        raise MalformedFrame(f"a frame of {len(frame)} bytes is above {MAX_FRAME}")
    for start in range(0, len(frame), _PIECE):
        yield frame[start : start + _PIECE], start + _PIECE >= len(frame)


class Pieces:
    """Collects the pieces of one frame."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._data

    def add(self, piece: bytes, *, last: bool) -> bytes | None:
        """Return the frame after its last piece, None before."""
        if len(self._data) + len(piece) > MAX_FRAME:
            raise MalformedFrame(f"a frame in pieces is above {MAX_FRAME} bytes")
        self._data += piece
        if not last:
            return None
        frame = bytes(self._data)
        self._data.clear()
        return frame
