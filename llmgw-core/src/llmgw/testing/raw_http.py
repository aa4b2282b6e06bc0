"""An HTTP/1.1 client that hides nothing: raw bytes out, and whether an answer ended regularly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RawAnswer:
    """One answer as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    ended: bool = False  #: by its length or its last chunk; False: the connection broke off
    framing: str = "none"  #: `length`, `chunked`, `close`
    pieces: list[bytes] = field(default_factory=list)  #: chunks, as they were framed

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[str]:
        """Return the data of each event of a stream."""
        return [
            line.removeprefix("data:").strip()
            for line in self.body.decode().replace("\r\n", "\n").split("\n")
            if line.startswith("data:")
        ]

    def error(self) -> dict[str, Any]:
        """Return the error object of an OpenAI error."""
        found: dict[str, Any] = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found


class RawConnection:
    """One connection to a server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> RawAnswer:
        """Read one answer. head_only: of a HEAD request, or to leave the body unread."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        answer = RawAnswer(
            status=int(first.split(" ")[1]),
            headers=[
                (name.lower(), value.strip())
                for name, _, value in (item.partition(":") for item in rest if item)
            ],
        )
        if not head_only and answer.status not in (204, 304) and answer.status >= 200:
            await self.read_body(answer)
        return answer

    async def read_body(self, answer: RawAnswer) -> None:
        """Read the rest of an answer whose head was read."""
        try:
            if answer.header("transfer-encoding") == "chunked":
                answer.framing = "chunked"
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    piece = (await self.reader.readexactly(size + 2))[:-2]
                    answer.pieces.append(piece)
                    answer.body += piece
                await self.reader.readexactly(2)
            elif (length := answer.header("content-length")) is not None:
                answer.framing = "length"
                answer.body = await self.reader.readexactly(int(length))
            else:
                answer.framing = "close"
                answer.body = await self.reader.read()
            answer.ended = True
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if isinstance(error, asyncio.IncompleteReadError):
                answer.body += error.partial

    async def is_closed(self, within_s: float = 5.0) -> bool:
        """Say whether the server closes the connection, having sent nothing more."""
        try:
            async with asyncio.timeout(within_s):
                return await self.reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def stop_reading(self) -> None:
        """Read nothing from now on, so that buffers on the way fill."""
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    def read_again(self) -> None:
        """Read what has come in since `stop_reading`."""
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.resume_reading()

    def reset(self) -> None:
        """Leave without the good manners of TCP."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


@asynccontextmanager
async def connect(port: int, *, host: str = "127.0.0.1") -> AsyncIterator[RawConnection]:
    """Open a connection, and close it at the end."""
    reader, writer = await asyncio.open_connection(host, port, limit=2**22)
    connection = RawConnection(reader, writer)
    try:
        yield connection
    finally:
        await connection.close()


def post(
    path: str,
    body: object,
    *,
    headers: Mapping[str, str] | None = None,
    chunked: bool = False,
    host: bool = True,
) -> bytes:
    """Return a POST request. body: bytes as they are, else as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"content-type": "application/json", **(headers or {})}
    if host:
        named = {"host": "test", **named}
    if chunked:
        named["transfer-encoding"] = "chunked"
        half = len(raw) // 2 or 1
        framed = b"".join(
            b"%x\r\n%b\r\n" % (len(part), part) for part in (raw[:half], raw[half:]) if part
        )
        raw = framed + b"0\r\n\r\n"
    else:
        named["content-length"] = str(len(raw))
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + raw


def get(path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET") -> bytes:
    """Return a request without a body."""
    lines = "".join(
        f"{name}: {value}\r\n" for name, value in {"host": "test", **(headers or {})}.items()
    )
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
