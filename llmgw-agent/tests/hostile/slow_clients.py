"""Thousands of clients that are slow in one way each, or only idle: a program of its own.

    python slow_clients.py PORT KEY head=990,body=990,read=20 SECONDS

A connection that is closed is opened again until the time is over. Then it waits for all to be
closed and prints, by kind, how many were and after how many seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import cast

TICKS = 100  #: one second's bytes do not come in one burst, but spread over this many parts
GIVE_UP_S = 30.0
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer %b\r\n"
_BODY = b'{"model": "demo", "stream": true, "max_tokens": 1500, "padding": 8000, "messages": []}'


class Client(asyncio.Protocol):
    """One connection. Its age counts from when the server could know that it is slow."""

    def __init__(
        self, kind: str, turn: int, key: bytes, closed: asyncio.Queue[tuple[Client, float]]
    ) -> None:
        self.kind = kind
        self.turn = turn  #: of a second's parts, the one in which it is looked after
        self._key = key
        self._closed = closed
        self._began = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._began = asyncio.get_running_loop().time()
        head = _HEAD % self._key
        if self.kind == "idle":
            self.transport.write(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
        elif self.kind == "head":
            self.transport.write(head + b"X-Slow: ")
        elif self.kind == "body":
            self.transport.write(head + b"Content-Length: 1000000\r\n\r\n{")
        else:
            # Later: asyncio of CPython 3.11.2 begins to read after this, whatever is said here.
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)
            self.transport.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY))

    def drip(self) -> None:
        """Send a second's worth: one byte of a head, a tenth of the slowest body that may be."""
        if self.transport is not None and self.kind in ("head", "body"):
            self.transport.write(b"a" if self.kind == "head" else b"a" * 100)

    def look(self) -> None:
        """A client that reads nothing does not see the end either: look for it in the kernel."""
        if self.kind == "read" and self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            state = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            if state != _ESTABLISHED:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # asyncio's name
        self.transport = None
        age_s = asyncio.get_running_loop().time() - self._began
        self._closed.put_nowait((self, age_s))


_ESTABLISHED = 1


async def open_one(port: int, client: Client) -> None:
    raw = socket.socket()
    if client.kind == "read":
        # Else the kernel takes the whole answer, and nobody is slow.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", port))
    await loop.create_connection(lambda: client, sock=raw)


async def run(port: int, key: bytes, kinds: dict[str, int], seconds: float) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    closed: asyncio.Queue[tuple[Client, float]] = asyncio.Queue()
    ages: dict[str, list[float]] = {kind: [] for kind in kinds}
    # Each keeps its turn, whoever else comes and goes: so each is looked after once a second.
    turns: list[set[Client]] = [set() for _ in range(TICKS)]

    async def begin(kind: str, turn: int) -> None:
        client = Client(kind, turn, key, closed)
        turns[turn].add(client)
        await open_one(port, client)

    for kind, count in kinds.items():
        for number in range(count):
            await begin(kind, number % TICKS)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    tick = 0
    while loop.time() < until or any(turns):
        if loop.time() > until + GIVE_UP_S:
            break
        tick += 1
        for client in turns[tick % TICKS]:
            client.drip()
            client.look()
        while not closed.empty():
            client, age_s = closed.get_nowait()
            turns[client.turn].discard(client)
            ages[client.kind].append(age_s)
            if loop.time() < until:
                await begin(client.kind, client.turn)
        if loop.time() >= until:
            for client in (client for turn in turns for client in turn):
                if client.kind == "idle" and client.transport is not None:
                    client.transport.abort()
        await asyncio.sleep(1 / TICKS)
    return {
        "closed": {kind: len(found) for kind, found in ages.items()},
        "latest_s": {kind: round(max(found, default=0.0), 2) for kind, found in ages.items()},
        "left_open": sum(map(len, turns)),
    }


if __name__ == "__main__":
    os.nice(10)  # these clients stand for other machines: their own work must not slow anybody down
    chosen = {
        kind: int(count)
        for kind, _, count in (one.partition("=") for one in sys.argv[3].split(","))
    }
    outcome = asyncio.run(run(int(sys.argv[1]), sys.argv[2].encode(), chosen, float(sys.argv[4])))
    sys.stdout.write(json.dumps(outcome) + "\n")
