"""The few edits of a JSON body, made on its bytes.

Writing the body anew would reorder, re-escape and round what the client sent (C009, C023);
these touch the named field and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from llmgw.router.forward.envelope import Envelope
from llmgw.router.routes import ModelPlace

_TOKEN = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"'  # a string
    rb"|[{}\[\],:]"
    rb'|[^\s{}\[\],:"]+',  # a number or a literal
    re.DOTALL,
)
_USAGE_ON = b'{"include_usage":true}'


def body_for_engine(envelope: Envelope, *, model: str, stream: bool) -> bytes | bytearray:
    """Return the body to send: the asked model as the engine calls it, usage asked for.

    stream: the engine is asked for a stream, whatever the client wants. The result is the
    client's own body where nothing has to change.
    """
    body = envelope.body
    if envelope.route.model is ModelPlace.MULTIPART:
        return _form_for_engine(envelope, model)
    if envelope.route.model is not ModelPlace.JSON:
        return body
    added: list[bytes] = []
    changed: list[tuple[bytes, bytes]] = []
    if model != envelope.model:
        changed.append((b"model", msgspec.json.encode(model)))
    if stream and not envelope.stream:
        if envelope.stream_given:
            changed.append((b"stream", b"true"))
        else:
            added.append(b'"stream":true,')
    if stream and envelope.route.asks_usage and not envelope.wants_usage:
        if envelope.stream_options_given:
            changed.append((b"stream_options", _USAGE_ON))
        else:
            added.append(b'"stream_options":' + _USAGE_ON + b",")
    for key, value in changed:
        body = replace_field(body, key, value)
    if added:
        # In front of the other fields: the place that needs no search. The object is not
        # empty, since it has `model`.
        start = body.index(b"{") + 1
        body = b"".join((body[:start], *added, body[start:]))
    return body


def _form_for_engine(envelope: Envelope, model: str) -> bytes | bytearray:
    if model == envelope.model or envelope.model_span is None:
        return envelope.body
    start, end = envelope.model_span
    return b"".join((envelope.body[:start], model.encode(), envelope.body[end:]))


def replace_field(body: bytes | bytearray, key: bytes, value: bytes) -> bytes | bytearray:
    """Return the object with the value of one top-level field replaced; as it was without it."""
    span = top_level_span(body, key)
    if span is None:
        return body
    return b"".join((body[: span[0]], value, body[span[1] :]))


def with_fields(body: bytes | bytearray, fields: Mapping[str, object]) -> bytes | bytearray:
    """Return the object with these top-level fields, none of them twice. None: left out.

    What else the body says stays as it was written.
    """
    added = [
        b"%b:%b" % (msgspec.json.encode(name), msgspec.json.encode(value))
        for name, value in fields.items()
        if value is not None
    ]
    if b"\\" not in body and not any(b'"%b"' % name.encode() in body for name in fields):
        if not added:
            return body
        start = body.index(b"{") + 1
        return b"".join((body[:start], b",".join(added), b",", body[start:]))
    kept = [bytes(body[start:end]) for name, start, end in _members(body) if name not in fields]
    return b"{%b}" % b",".join((*added, *kept))


def _members(body: bytes | bytearray) -> Iterator[tuple[str, int, int]]:
    """Yield each top-level field of a well-formed object: name, and where it starts and ends."""
    depth, start, end, name = 0, -1, 0, ""
    for token in _TOKEN.finditer(body):
        text = token[0]
        if depth == 1 and text in (b",", b"}"):
            if start >= 0:
                yield name, start, end
            start = -1
        elif depth == 1 and start < 0:
            start = token.start()
            name = _name_of(text)
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        end = token.end()


def _name_of(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except msgspec.DecodeError:  # a lone surrogate, say: none of ours, and the engine's to refuse
        return ""


def top_level_span(body: bytes | bytearray, key: bytes) -> tuple[int, int] | None:
    """Return where the value of a top-level field lies in a well-formed object."""
    depth = 0
    found = False
    start = -1
    previous_end = 0
    key_next = False
    for token in _TOKEN.finditer(body):
        text = token[0]
        if start < 0 and found and text != b":":
            start = token.start()
        if text in (b"{", b"["):
            depth += 1
            key_next = depth == 1
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 0 and start >= 0:
                return start, previous_end
        elif depth == 1 and text == b",":
            if start >= 0:
                return start, previous_end
            key_next = True
        elif depth == 1 and key_next:
            key_next = False
            found = _is_key(text, key)
        previous_end = token.end()
    return None


def _is_key(token: bytes, key: bytes) -> bool:
    if b"\\" in token:
        return bool(msgspec.json.decode(token, type=str) == key.decode())
    return token[1:-1] == key
