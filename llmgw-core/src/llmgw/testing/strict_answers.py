"""Reads everything that a server sent on one connection, and objects to whatever is not right.

For tests of servers with hostile clients: after a malformed request it matters that what comes
back is sound HTTP, that refusals have codes, and that nothing follows a promised close.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ([ -~]*)")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")


class UnsoundAnswer(AssertionError):
    """What came back breaks a rule of HTTP or of ours; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One final answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def closes(self) -> bool:
        return self.header(b"connection") == b"close"

    @property
    def code(self) -> str:
        """The code of an OpenAI error, the type of an Anthropic one."""
        error: Any = json.loads(self.body)["error"]
        return str(error.get("code") or error["type"])


def read_answers(data: bytes, *, is_head: bool = False) -> list[Answer]:
    """Return all final answers. is_head: the first may be one without its body.

    Raises UnsoundAnswer for bad framing, an error without JSON and code, and bytes after an
    answer that said `connection: close`.
    """
    answers: list[Answer] = []
    while data:
        if answers and answers[-1].closes:
            raise UnsoundAnswer(f"{len(data)} bytes after an answer that closes: {data[:200]!r}")
        status, headers, data = _head(data)
        if 100 <= status < 200:
            continue
        bodiless = is_head and not answers and (not data or data.startswith(b"HTTP/1.1 "))
        body, data = (b"", data) if bodiless else _body(status, headers, data)
        answer = Answer(status=status, headers=headers, body=body)
        if status >= 400 and not bodiless:
            _check_error(answer)
        answers.append(answer)
    return answers


def _head(data: bytes) -> tuple[int, tuple[tuple[bytes, bytes], ...], bytes]:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        raise UnsoundAnswer(f"a head without an end: {data[:200]!r}")
    first, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise UnsoundAnswer(f"not a status line: {first[:200]!r}")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not (colon and _NAME.fullmatch(name.lower()) and _VALUE.fullmatch(value)):
            raise UnsoundAnswer(f"not a header: {line[:200]!r}")
        headers.append((name.lower(), value.strip()))
    return int(match[1]), tuple(headers), rest


def _body(
    status: int, headers: tuple[tuple[bytes, bytes], ...], data: bytes
) -> tuple[bytes, bytes]:
    if status in (204, 304):
        return b"", data
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise UnsoundAnswer(f"framed twice: {lengths} {codings}")
    if codings == [b"chunked"]:
        return _chunks(data)
    if not lengths:
        return data, b""  # up to the end of the connection
    length = int(lengths[0])
    if len(data) < length:
        raise UnsoundAnswer(f"{len(data)} bytes of a body of {length}")
    return data[:length], data[length:]


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, end, data = data.partition(b"\r\n")
        if not end:
            raise UnsoundAnswer("a chunked body without its last chunk")
        size = int(line, 16)
        if data[size : size + 2] != b"\r\n":
            raise UnsoundAnswer(f"a chunk of {size} bytes without an end")
        body += data[:size]
        data = data[size + 2 :]
        if not size:
            return body, data


def _check_error(answer: Answer) -> None:
    content_type = answer.header(b"content-type") or b""
    if not content_type.startswith(b"application/json"):
        raise UnsoundAnswer(f"a {answer.status} of type {content_type!r}: {answer.body[:200]!r}")
    try:
        code = answer.code
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsoundAnswer(f"a {answer.status} without a code: {answer.body[:200]!r}") from error
    if not code:
        raise UnsoundAnswer(f"a {answer.status} with an empty code: {answer.body[:200]!r}")
