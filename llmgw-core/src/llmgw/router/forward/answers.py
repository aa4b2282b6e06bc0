"""What becomes of an engine's answer: passed on event by event, whole, assembled, or refused.

One object per attempt, fed by the exchange with what each read brought.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from llmgw.router.forward.assemble import Assembler
from llmgw.router.pool import AnswerHead
from llmgw.router.routes import Assembly
from llmgw.router.sse import (
    ENDS,
    EventCutter,
    Usage,
    event_data,
    find_error,
    has_data,
    read_usage,
    split_events,
    without_usage_events,
)

_HELD_BYTES = 256 * 1024
_ERROR_BYTES = 64 * 1024
_TAIL_BYTES = 4096
_FINAL_EVENTS = (b"[DONE]", b"message_stop", b"response.completed")


class Renaming:
    """Puts the asked name back where the engine wrote its own."""

    __slots__ = ("_pairs",)

    def __init__(self, served: str, asked: str) -> None:
        old, new = msgspec.json.encode(served), msgspec.json.encode(asked)
        self._pairs = (
            (b'"model":' + old, b'"model":' + new),
            (b'"model": ' + old, b'"model": ' + new),
        )

    def apply(self, data: bytes) -> bytes:
        for old, new in self._pairs:
            data = data.replace(old, new)
        return data


class AnswerTarget(Protocol):
    """The exchange, as its answers see it."""

    @property
    def renaming(self) -> Renaming | None: ...

    @property
    def hides_usage(self) -> bool:
        """The router asked for usage and the client did not."""
        ...

    @property
    def has_shown(self) -> bool:
        """Bytes of an engine have gone to the client."""
        ...

    def take_usage(self, usage: Usage) -> None: ...

    def show_events(self, block: bytes) -> None:
        """Send whole events of a stream."""
        ...

    def show_comments(self, block: bytes) -> None:
        """Send comments, which leave a retry possible."""
        ...

    def show_start(self, head: AnswerHead, length: int | None, data: bytes) -> None:
        """Send the head and the beginning of a plain answer."""
        ...

    def show_more(self, data: bytes) -> None: ...

    def show_whole(self, head: AnswerHead, body: bytes) -> None:
        """Send a plain answer whole and finish."""
        ...

    def close_answer(self) -> None:
        """What was shown in pieces is complete."""
        ...

    def engine_refused(self, status: int, body: bytes, retry_after: bytes | None) -> None:
        """The engine answered with an error; status 200: inside a stream."""
        ...

    def engine_vanished(self) -> None:
        """The answer broke off, or made no sense."""
        ...


class Answer(Protocol):
    """One engine's answer on its way."""

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def is_whole(self) -> bool:
        """Whether all that matters has come, should the connection end now."""
        ...


class StreamAnswer:
    """Events pass as they come; only what the exchange needs of them is looked at."""

    __slots__ = ("_cutter", "_ends_by_close", "_last", "_target")

    def __init__(self, target: AnswerTarget, *, ends_by_close: bool) -> None:
        self._target = target
        self._ends_by_close = ends_by_close
        self._cutter = EventCutter()
        self._last = b""

    def data(self, data: bytes) -> None:
        if not self._cutter.pending and data.endswith(ENDS):  # nearly always
            self._pass(data)
            return
        try:
            block = self._cutter.cut(data)
        except OverflowError:
            self._target.engine_vanished()
            return
        if block:
            self._pass(block)

    def _pass(self, block: bytes) -> None:
        target = self._target
        if not target.has_shown:
            if not has_data(block):
                target.show_comments(block)
                return
            error = find_error(block)
            if error is not None:
                target.engine_refused(200, error, None)
                return
        elif b'"error"' in block and (error := find_error(block)) is not None:
            before = b"".join(_until_error(block))
            if before:
                target.show_events(before)
            target.engine_refused(200, error, None)
            return
        if b'"usage"' in block and (usage := read_usage(block)) is not None:
            target.take_usage(usage)
            if target.hides_usage:
                block = without_usage_events(block)
                if not block:
                    return
        if target.renaming is not None:
            block = target.renaming.apply(block)
        self._last = block
        target.show_events(block)

    def end(self) -> None:
        rest = self._cutter.rest()
        if rest.strip():
            # The end of the stream ends its last event too.
            self._pass(rest + b"\n\n")
        if self._target.has_shown and (self.is_whole() or not self._ends_by_close):
            self._target.close_answer()
        else:
            self._target.engine_vanished()

    def is_whole(self) -> bool:
        return any(word in self._last for word in _FINAL_EVENTS)


def _until_error(block: bytes) -> list[bytes]:
    events: list[bytes] = []
    for event in split_events(block):
        if find_error(event) is not None:
            break
        events.append(event)
    return events


class PlainAnswer:
    """JSON is held until whole, up to a limit, so that a death in the middle is a clean error."""

    __slots__ = ("_head", "_held", "_holds", "_length", "_size", "_tail", "_target")

    def __init__(self, target: AnswerTarget, head: AnswerHead) -> None:
        self._target = target
        self._head = head
        self._held: list[bytes] = []
        self._size = 0
        self._tail = b""
        self._length = head.length
        content_type = head.content_type
        # Audio is played while it comes: nothing of it may wait.
        self._holds = b"json" in content_type or b"text/plain" in content_type

    def data(self, data: bytes) -> None:
        if self._holds:
            self._held.append(data)
            self._size += len(data)
            if self._size > _HELD_BYTES:
                self._pass_held()
            return
        if not self._target.has_shown:
            self._target.show_start(self._head, self._length, data)
            return
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._target.show_more(data)

    def _pass_held(self) -> None:
        start = b"".join(self._held)
        self._held.clear()
        self._holds = False
        self._tail = start[-_TAIL_BYTES:]
        length = self._length
        renaming = self._target.renaming
        if renaming is not None:
            renamed = renaming.apply(start)
            length = None if len(renamed) != len(start) else length
            start = renamed
        self._target.show_start(self._head, length, start)

    def end(self) -> None:
        target = self._target
        if target.has_shown:
            if (usage := read_usage(self._tail)) is not None:
                target.take_usage(usage)
            target.close_answer()
            return
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        if (usage := read_usage(body)) is not None:
            target.take_usage(usage)
        if target.renaming is not None:
            body = target.renaming.apply(body)
        target.show_whole(self._head, body)

    def is_whole(self) -> bool:
        return False


class AssembledAnswer:
    """A stream that becomes the plain answer that was asked for."""

    __slots__ = ("_assembler", "_cutter", "_head", "_over", "_target", "_whole")

    def __init__(self, target: AnswerTarget, head: AnswerHead, assembly: Assembly) -> None:
        self._target = target
        self._head = head
        self._assembler = Assembler(assembly)
        self._cutter = EventCutter()
        self._whole = False
        self._over = False

    def data(self, data: bytes) -> None:
        try:
            self._take(self._cutter.cut(data))
        except (OverflowError, msgspec.DecodeError, RecursionError):
            self._target.engine_vanished()

    def _take(self, block: bytes) -> None:
        for event in split_events(block):
            data = event_data(event)
            if data == b"[DONE]":
                self._whole = True
            elif data and not self._over:
                error = find_error(event)
                if error is not None:
                    self._over = True
                    self._target.engine_refused(200, error, None)
                    return
                usage = read_usage(data)
                if usage is not None:
                    self._target.take_usage(usage)
                self._assembler.add(data)

    def end(self) -> None:
        if self._assembler.is_empty or not self._whole:
            self._target.engine_vanished()
            return
        body = self._assembler.answer()
        if self._target.renaming is not None:
            body = self._target.renaming.apply(body)
        head = AnswerHead(self._head.status, {b"content-type": b"application/json"})
        self._target.show_whole(head, body)

    def is_whole(self) -> bool:
        return self._whole


class RefusedAnswer:
    """An error of the engine, kept until whole and then judged."""

    __slots__ = ("_body", "_head", "_target")

    def __init__(self, target: AnswerTarget, head: AnswerHead) -> None:
        self._target = target
        self._head = head
        self._body = b""

    def data(self, data: bytes) -> None:
        if len(self._body) < _ERROR_BYTES:
            self._body += data

    def end(self) -> None:
        self._target.engine_refused(
            self._head.status, self._body, self._head.headers.get(b"retry-after")
        )

    def is_whole(self) -> bool:
        return True
