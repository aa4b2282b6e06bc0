"""What one session still has to send: control first, reports after it."""

from __future__ import annotations

from collections import deque

import anyio

# A peer that is this far behind is not reading; waiting for it would only hide that.
MAX_CONTROL = 4096
_MAX_REPORTS = 8


class LanesFull(Exception):
    """The peer does not read what it is sent."""


class Lanes:
    """A queue of frames, each as the messages that it is made of."""

    def __init__(self) -> None:
        self._control: deque[tuple[bytes, ...]] = deque()
        self._reports: deque[tuple[bytes, ...]] = deque()
        self._filled = anyio.Event()
        self._room = anyio.Event()
        self._is_closed = False

    def put_nowait(self, messages: tuple[bytes, ...]) -> None:
        """Queue a frame of control. Raises LanesFull."""
        if len(self._control) >= MAX_CONTROL:
            raise LanesFull
        self._control.append(messages)
        self._filled.set()

    async def put_report(self, messages: tuple[bytes, ...]) -> None:
        """Queue a report, after room for it: what waits outside is replaced by what is newer."""
        while len(self._reports) >= _MAX_REPORTS:
            self._room = anyio.Event()
            await self._room.wait()
        self._reports.append(messages)
        self._filled.set()

    def close(self) -> None:
        """Let the reader end once it has everything."""
        self._is_closed = True
        self._filled.set()

    async def get(self) -> tuple[bytes, ...] | None:
        """Return the next frame's messages; None after the last of a closed queue. For one reader."""
        while True:
            if self._control:
                return self._control.popleft()
            if self._reports:
                self._room.set()
                return self._reports.popleft()
            if self._is_closed:
                return None
            self._filled = anyio.Event()
            await self._filled.wait()
