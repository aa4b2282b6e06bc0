"""One JSON line for each request, written in batches off the event loop.

A logging call costs 10 to 20 µs a request and may block on a full pipe; encoding a line
costs under 1 µs and a batch of them is written by a thread. Prompts, completions and keys
are never part of a line.
"""

from __future__ import annotations

import queue
import re
import threading
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

_BATCH = 1024
"""Lines. To write some, two busy threads hand the GIL to each other about fifty times."""
_BATCHES_WAITING = 16


class ByteSink(Protocol):
    """Where lines go. Called from one thread of its own."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...


class RotatingFile:
    """A file that starts anew at a size, keeping one older part beside it.

    Open from one write to its flush only, so that nothing has to be closed at the end.
    """

    def __init__(self, path: Path, *, limit_bytes: int = 64 * 1024 * 1024) -> None:
        self._path = path
        self._limit = limit_bytes
        self._file: BinaryIO | None = None

    def write(self, data: bytes, /) -> None:
        file = self._file or self._path.open("ab")
        if file.tell() + len(data) > self._limit:
            self._file = None  # should it not be to be renamed, the next write begins anew
            file.close()
            self._path.replace(self._path.with_suffix(self._path.suffix + ".1"))
            file = self._path.open("ab")
        self._file = file
        file.write(data)

    def flush(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


# W3C Trace Context; the ids of all zeros that it forbids find nothing, as does anything else.
_TRACE = re.compile(rb"(?:^|\n)traceparent: [0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-")


def trace_id_of(headers: bytes) -> str:
    """Return the trace id in serialised headers; empty where none is given, or no valid one."""
    found = _TRACE.search(headers)
    return "" if found is None else found[1].decode()


class AccessRecord(msgspec.Struct, omit_defaults=True):
    """What is noted of one request."""

    time: float  #: Unix seconds, when it ended
    request_id: str
    route: str
    model: str
    status: int
    duration_s: float
    trace_id: str = ""  #: of the client's `traceparent`, which the engine gets as well
    client: str = ""  #: its address
    key: str = ""
    endpoint: str = ""
    prefill: str = ""  #: the endpoint that computed the prompt, if it was another
    outcome: str = ""
    attempts: int = 0
    stream: bool = False
    first_token_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class AccessLog:
    """Collects records and hands them over in batches. Where the writer cannot keep up, records
    are dropped and counted: a slow disk must not become a slow router."""

    def __init__(self, stream: ByteSink) -> None:
        self.dropped = 0
        self._stream = stream
        self._encoder = msgspec.json.Encoder(decimal_format="number")
        self._lines: list[bytes] = []
        self._batches: queue.Queue[bytes | None] = queue.Queue(_BATCHES_WAITING)
        self._thread = threading.Thread(target=self._write, name="access-log", daemon=True)
        self._thread.start()

    def add(self, record: AccessRecord) -> None:
        self._lines.append(self._encoder.encode(record))
        if len(self._lines) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what has been collected. Called once a second besides."""
        lines = self._lines
        if not lines:
            return
        self._lines = []
        try:
            self._batches.put_nowait(b"\n".join(lines) + b"\n")
        except queue.Full:
            self.dropped += len(lines)

    def close(self) -> None:
        """Write what is left, within a second."""
        self.flush()
        try:
            self._batches.put(None, timeout=0.5)
        except queue.Full:
            return
        self._thread.join(0.5)

    def _write(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._stream.write(batch)
                self._stream.flush()
            except (OSError, ValueError):  # the pipe is gone, or the stream was closed
                self.dropped += batch.count(b"\n")
