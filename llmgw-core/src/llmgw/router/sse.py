"""Event streams, looked at but not parsed.

Chunks pass as the bytes that the engine sent. What the router must know is found by
searching those bytes: where events end, an error, `usage`. A JSON string cannot hold
`"usage":` unescaped, so a hit is structure, never text that a model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

EVENT_LIMIT = 16 * 1024 * 1024
DONE = b"data: [DONE]\n\n"

ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA_FIELD = re.compile(rb"^data(?::[ ]?|$)(.*)$", re.MULTILINE)
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')


class Usage(msgspec.Struct):
    """Tokens of one request as the engine counted them; None: it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def merge(self, other: Usage) -> None:
        """Take what `other` says: the newest figure of a stream is the whole one."""
        if other.prompt_tokens is not None:
            self.prompt_tokens = other.prompt_tokens
        if other.completion_tokens is not None:
            self.completion_tokens = other.completion_tokens
        if other.cached_tokens is not None:
            self.cached_tokens = other.cached_tokens


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _EngineUsage(msgspec.Struct):
    """Both families of names: OpenAI's and Anthropic's."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None


_usage_decoder = msgspec.json.Decoder(_EngineUsage)


class EventCutter:
    """Passes whole events on, keeping back the start of one that is not complete.

    So a client never sees half an event, also when the engine dies in the middle of one.
    """

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = bytearray()  #: the start of an event

    def cut(self, data: bytes) -> bytes:
        """Return all events that are complete now, b"" if none is.

        Raises OverflowError for a single event above EVENT_LIMIT.
        """
        rest = self.pending
        if not rest and data.endswith(ENDS):
            return data
        # A boundary may lie across the border; no byte but the last three is searched twice.
        start = max(0, len(rest) - 3)
        rest += data
        end = -1
        for match in _BOUNDARY.finditer(rest, start):
            end = match.end()
        if end < 0:
            if len(rest) > EVENT_LIMIT:
                raise OverflowError("an event of the stream is too large")
            return b""
        whole = bytes(rest[:end])
        del rest[:end]
        return whole

    def rest(self) -> bytes:
        """Return and forget what has come of an event that was never completed."""
        rest = bytes(self.pending)
        self.pending.clear()
        return rest


def split_events(block: bytes) -> Iterator[bytes]:
    """Yield the events of a block of whole ones, each with its own end."""
    start = 0
    for match in _BOUNDARY.finditer(block):
        yield block[start : match.end()]
        start = match.end()
    if start < len(block):
        yield block[start:]


def event_data(event: bytes) -> bytes:
    """Return the data of one event: its `data` fields joined by line feeds, b"" if it has none."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return b"\n".join(match[1] for match in _DATA_FIELD.finditer(lines))


def has_data(block: bytes) -> bool:
    """Whether any event of the block is more than a comment."""
    return block.startswith(b"data") or bool(_DATA_FIELD.search(block.replace(b"\r", b"\n")))


def find_error(block: bytes) -> bytes | None:
    """Return the data of the first event that is an error object, None if there is none."""
    if b'"error"' not in block:
        return None
    for event in split_events(block):
        data = event_data(event)
        if b'"error"' in data and _is_error(data):
            return data
    return None


class _ErrorProbe(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw()
    choices: msgspec.Raw = msgspec.Raw()


_error_decoder = msgspec.json.Decoder(_ErrorProbe)


def _is_error(data: bytes) -> bool:
    try:
        probe = _error_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    # Objects of the responses API hold `"error": null`; a chunk with choices is an answer.
    return bytes(probe.error) not in (b"", b"null") and not bytes(probe.choices)


def read_usage(text: bytes) -> Usage | None:
    """Return the last `"usage": {…}` of an answer or a block of events, None if there is none."""
    place = text.rfind(b'"usage"')
    while place >= 0:
        match = _USAGE.match(text, place)
        if match is not None:
            start = match.end()
            end = text.find(b"}", start) + 1
            while end and text.count(b"{", start, end) != text.count(b"}", start, end):
                end = text.find(b"}", end) + 1  # counts hold no strings with braces
            return _usage_of(text[start:end])
        place = text.rfind(b'"usage"', 0, place)  # this one was `"usage": null`
    return None


def _usage_of(raw: bytes) -> Usage | None:
    try:
        said = _usage_decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    details = said.prompt_tokens_details or said.input_tokens_details
    cached = details.cached_tokens if details else said.cache_read_input_tokens
    prompt = said.prompt_tokens if said.prompt_tokens is not None else said.input_tokens
    output = said.completion_tokens if said.completion_tokens is not None else said.output_tokens
    return Usage(prompt, output, cached)


def without_usage_events(block: bytes) -> bytes:
    """Return the block without events that hold usage and no choice.

    They are there because the router asked for usage and the client did not (C017).
    """
    return b"".join(
        event
        for event in split_events(block)
        if not (_USAGE.search(event) and _NO_CHOICES.search(event))
    )
