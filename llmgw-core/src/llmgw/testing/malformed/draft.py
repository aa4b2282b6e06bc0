"""Sound requests, as clients really send them, in a form that can be spoilt."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Draft:
    """A request that is being spoilt."""

    number: int
    random: random.Random
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_chunked: bool = False
    version: bytes = b"HTTP/1.1"
    line_end: bytes = b"\r\n"
    behind: bytes = b""  #: pipelined
    meant: int = 1  #: how many requests an engine may see of it
    raw: bytes | None = None  #: the whole of it, where it is no request any more
    changes: list[str] = field(default_factory=list)

    def replace(self, name: bytes, *values: bytes) -> None:
        kept = [(key, value) for key, value in self.headers if key.lower() != name.lower()]
        self.headers = [*kept, *((name, value) for value in values)]

    def framed_body(self) -> bytes:
        if not self.is_chunked:
            return self.body
        cut = self.random.randrange(1, max(2, len(self.body)))
        parts = [part for part in (self.body[:cut], self.body[cut:]) if part]
        return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"

    def wire(self) -> bytes:
        if self.raw is not None:
            return self.raw
        lines = [b"%b %b %b" % (self.method, self.target, self.version)]
        lines += [b"%b: %b" % header for header in self.headers]
        head = self.line_end.join((*lines, b"", b""))
        return head + self.framed_body() + self.behind


def sound_request(drawn: random.Random, number: int, key: str, model: str) -> Draft:
    """Return one of the requests that clients really send."""
    headers = [
        (b"Host", b"127.0.0.1"),
        (b"Authorization", f"Bearer {key}".encode()),
        (b"User-Agent", b"OpenAI/Python 3.57.0"),
        (b"Accept", b"application/json"),
        (b"Content-Type", b"application/json"),
    ]
    named = {"model": model, "user": f"u-{number}"}
    talk = [{"role": "user", "content": "Grüße, 北京 🙂"}]
    kind = drawn.randrange(8)
    body: dict[str, object] = {**named, "messages": talk}
    target, method = b"/v1/chat/completions", b"POST"
    if kind == 1:
        body["stream"] = True
    elif kind == 2:
        body = {**named, "prompt": "x" * drawn.choice((1, 500, 70_000))}
        target = b"/v1/completions"
    elif kind == 3:
        body = {**named, "input": ["one", "two"]}
        target = b"/v1/embeddings"
    elif kind == 4:
        body["max_tokens"] = 5
        target = b"/v1/messages"
    elif kind == 5:
        return Draft(number, drawn, b"GET", b"/v1/models", headers[:4], b"", meant=0)
    elif kind == 6:
        return _form(number, drawn, headers, model)
    raw = json.dumps(body, ensure_ascii=drawn.random() < 0.5).encode()
    draft = Draft(number, drawn, method, target, headers, raw)
    if kind == 7:
        draft.is_chunked = True
        draft.replace(b"Transfer-Encoding", b"chunked")
    else:
        draft.replace(b"Content-Length", b"%d" % len(raw))
    return draft


def _form(
    number: int, drawn: random.Random, headers: list[tuple[bytes, bytes]], model: str
) -> Draft:
    part = b'--xyz\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    body = part % (b"model", model.encode()) + part % (b"file", b"\0\1\2" * 100) + b"--xyz--\r\n"
    draft = Draft(number, drawn, b"POST", b"/v1/audio/transcriptions", headers, body)
    draft.replace(b"Content-Type", b"multipart/form-data; boundary=xyz")
    draft.replace(b"Content-Length", b"%d" % len(body))
    return draft
