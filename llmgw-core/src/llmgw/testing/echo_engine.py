"""A stand-in engine whose every token says whose it is: a program of its own, cheap enough that
thousands of streams run beside what is tested.

    python echo_engine.py --port 20000 --interval 0.5

A streamed request gets `max_tokens` events `{"id": USER, "n": NUMBER, …}`, where USER is its own
field `user`; a plain one an answer with that id. Field `padding` makes events that much longer
and lets them come at once. Any GET is answered with 200.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import cast

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection of a router: requests one after the other."""

    interval_s = 0.5

    def __init__(self) -> None:
        self._data = b""
        self._padding = ""
        self._is_paused = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        length = next(
            (
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            ),
            0,
        )
        if len(rest) >= length:
            self._data = rest[length:]
            self._answer(rest[:length])

    def _answer(self, body: bytes) -> None:
        asked = json.loads(body) if body else {}
        user = str(asked.get("user", ""))
        if asked.get("stream"):
            self._write(_HEAD)
            self._padding = "x" * int(asked.get("padding", 0))
            self._next(user, 0, int(asked.get("max_tokens", 5)))
            return
        answer = json.dumps({"id": user, "object": "chat.completion", "choices": []}).encode()
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(answer), answer)
        )

    def _next(self, user: str, number: int, count: int) -> None:
        if number == count:
            done = b"data: [DONE]\n\n"
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
            return
        if self._padding and self._is_paused:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(0.05, self._next, user, number, count)
            return
        event = (
            f'data: {{"id":"{user}","n":{number},"object":"chat.completion.chunk",'
            f'"choices":[{{"index":0,"delta":{{"content":"{user} {self._padding}"}}}}]}}\n\n'
        ).encode()
        self._write(b"%x\r\n%b\r\n" % (len(event), event))
        loop = asyncio.get_running_loop()
        pause_s = 0.0 if self._padding else self.interval_s
        self._timer = loop.call_later(pause_s, self._next, user, number + 1, count)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="echo_engine")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between tokens")
    given = parser.parse_args()
    Connection.interval_s = given.interval
    try:
        import uvloop

        uvloop.run(serve(given.port))
    except ImportError:
        asyncio.run(serve(given.port))
