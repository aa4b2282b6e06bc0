"""The shape of a JSON body: what the router reads of it, and what it refuses.

Parsed once, with a type that skips what is not needed; the checks beside it look at bytes.
"""

from __future__ import annotations

import json
from array import array
from itertools import accumulate
from typing import Any

import msgspec

from llmgw.errors import RequestError
from llmgw.router.ingress.abridged import LONG_STRING, abridged

DEPTH_LIMIT = 64
_FEW = 64
_LARGE = 4096
_LONG = 16 * 1024
_HUGE = 128 * 1024
_PART = 256 * 1024
_STEPS = bytes.maketrans(b"{}", b"\x01\xff")  # down, and up: -1 as a signed byte
_AS_BRACES = bytes.maketrans(b"[]", b"{}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))


class BodyFields(msgspec.Struct):
    """What the router reads of a JSON body. Types are checked by hand, for errors that name the
    field; a Raw is the value as the client wrote it, empty where there is none."""

    model: Any = None
    stream: Any = msgspec.UNSET
    stream_options: Any = msgspec.UNSET
    user: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    query: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()

    @property
    def wants_usage(self) -> bool:
        """The client itself asks for usage in its stream."""
        options = self.stream_options
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def session_user(self) -> str | None:
        """The field `user` as written: whoever sends the same one is the same to us."""
        return bytes(self.user).decode("utf-8", "replace") or None

    def start_of_prompt(self, names: tuple[str, ...], limit: int) -> bytes:
        """Return the start of the first of these fields that is there."""
        for name in names:
            raw = memoryview(getattr(self, name))
            if raw:
                return bytes(raw[:limit])
        return b""


_decoder = msgspec.json.Decoder(BodyFields)


def read_fields(body: bytes | bytearray, *, prompt_bytes: int = 0) -> BodyFields:
    """Return the fields of a JSON body. Raises RequestError naming what is wrong with it.

    prompt_bytes: how much of its prompt will be asked for at most.
    """
    size = len(body)
    if (
        size > _LONG
        and (size > _HUGE or _may_be_cut(body))
        and (short := abridged(body, prompt_bytes)) is not body
    ):
        try:
            return _fields(short)
        except RequestError:
            pass  # read whole, for an error that names the right byte
    return _fields(body)


def _may_be_cut(body: bytes | bytearray) -> bool:
    """Whether there seems to be a string that is long enough: looked at from eight places."""
    step = len(body) // 8
    places = range(step // 2, len(body) - LONG_STRING, step)
    return any(body.find(b'"', at, at + LONG_STRING) < 0 for at in places)


def _fields(body: bytes | bytearray) -> BodyFields:
    if not body:
        raise _bad("the request body is empty; send a JSON object", None)
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        # Never `from error`, never its input: texts of users stay out of logs.
        raise _unreadable(body, error) from None
    if type(fields.model) is not str:
        if fields.model is None:
            raise _bad("the field 'model' is missing", "model", "missing_required_parameter")
        raise _bad("the field 'model' must be a string", "model", "invalid_type")
    stream = fields.stream
    if not (stream is msgspec.UNSET or stream is False or stream is True or stream is None):
        raise _bad("the field 'stream' must be true or false", "stream", "invalid_type")
    options = fields.stream_options
    if not (options is msgspec.UNSET or options is None or isinstance(options, dict)):
        raise _bad("the field 'stream_options' must be an object", "stream_options", "invalid_type")
    _check_depth(body)
    _check_keys(_without_prompt(body, fields) if len(body) > _LARGE else body, body)
    return fields


def _unreadable(body: bytes | bytearray, error: Exception) -> RequestError:
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, msgspec.ValidationError) and not body.lstrip(b" \t\r\n").startswith(b"{"):
        return _bad("the request body must be a JSON object", None)
    # msgspec's messages name the place, never the content.
    return _bad(f"the request body is not valid JSON: {error}", None, "invalid_json")


def _check_keys(outside: bytes | bytearray, body: bytes | bytearray) -> None:
    """Refuse a second `model` or `stream` at the top level: two readers might choose differently.

    One search answers for nearly all bodies. Where the words occur again, or could be written
    with escapes, the whole body is parsed once more. outside: the body, or the part of it that
    may have keys of the top level.
    """
    if (
        outside.count(b'"model"') > 1
        or outside.count(b'"stream"') > 1
        or (b"\\" in outside and (b"\\u006" in outside or b"\\u007" in outside))
    ):
        # Bytes that are no UTF-8 are the engine's to refuse: msgspec passed over them too.
        text = bytes(body).decode("utf-8", "surrogateescape")
        pairs = json.loads(text, object_pairs_hook=list)
        names = [name for name, _ in pairs]
        for name in ("model", "stream"):
            if names.count(name) > 1:
                raise _bad(f"the field {name!r} is there twice", name, "duplicate_parameter")


def _without_prompt(body: bytes | bytearray, fields: BodyFields) -> bytes | bytearray:
    """Return a large body without its largest value, which holds no top-level key.

    The value is cut out only where it is found as it was read, so that whatever else stands
    in the body is still searched.
    """
    for name in ("messages", "input", "prompt"):
        value = memoryview(getattr(fields, name))
        if len(value) < _LARGE // 2:
            continue
        key = body.find(b'"%b"' % name.encode())
        start = body.find(bytes(value[:1]), key + len(name) + 2)
        if key >= 0 and _stands_at(body, start, value):
            return b"".join((body[:key], body[start + len(value) :]))
    return body


def _stands_at(body: bytes | bytearray, start: int, value: memoryview) -> bool:
    """Say whether the body has this value there; by parts, since a whole copy may be 64 MB."""
    return all(
        body.startswith(bytes(value[place : place + _PART]), start + place)
        for place in range(0, len(value), _PART)
    )


def _check_depth(body: bytes | bytearray) -> None:
    if _has_few(body, b"[") and _has_few(body, b"{"):
        return
    if _depth(_structure(bytes(body))) > DEPTH_LIMIT:
        raise _too_deep()


def _depth(braces: bytes) -> int:
    """Return how deep they are nested. Each one has its other half."""
    taken = 0
    while braces:
        shorter = braces.replace(b"{}", b"")  # without the innermost level everywhere
        if len(braces) - len(shorter) < len(braces) // 8:
            # Deep: level by level, some megabytes of it would hold the loop for seconds.
            return taken + max(accumulate(array("b", braces.translate(_STEPS))))
        braces = shorter
        taken += 1
    return taken


def _has_few(body: bytes | bytearray, bracket: bytes) -> bool:
    """Whether there are at most half of DEPTH_LIMIT of them: then nothing can be too deep."""
    place = -1
    for _ in range(_FEW // 2 + 1):
        place = body.find(bracket, place + 1)
        if place < 0:
            return True
    return False


def _structure(body: bytes) -> bytes:
    """Return the brackets of a well-formed body that are not in strings, all of them as braces."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(body.split(b'"')[::2]).translate(_AS_BRACES, _NOT_BRACKETS)


def _bad(message: str, param: str | None, code: str | None = None) -> RequestError:
    return RequestError(message, param=param, code=code)


def _too_deep() -> RequestError:
    return _bad(f"the request body is nested deeper than {DEPTH_LIMIT} levels", None, "too_deep")
