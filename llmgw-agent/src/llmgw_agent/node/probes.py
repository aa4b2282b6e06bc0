"""One small HTTP request to an engine of this node.

No HTTP library: an agent asks a few hundred short questions a minute over loopback, and is to
stay under 70 MB. No proxy is ever used: a machine that talks to itself needs none (C010).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import anyio
import httptools

from llmgw.contracts.engine import Probe
from llmgw.domain.secret import Secret
from llmgw_agent.node.processes import raise_if_starved

_BODY_LIMIT = 8 << 20  # a vLLM metrics page has 60 KB; more than this is no answer to a probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the engine said."""

    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def text(self) -> str:
        return self.body.decode(errors="replace")


class NoAnswer(Exception):
    """There was none, or not in time; the text says why, for a person."""


class _Reader:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > _BODY_LIMIT:
            raise NoAnswer(f"answers with more than {_BODY_LIMIT >> 20} MiB")

    def on_message_complete(self) -> None:
        self.complete = True


async def ask(address: str, port: int, probe: Probe, credential: Secret | None) -> Answer:
    """Send one request on a connection of its own and return the whole answer.

    Raises NoAnswer on refusal, time-out, a broken answer or one without end; OSError where this
    agent can open no socket, which says nothing about the engine.
    """
    try:
        with anyio.fail_after(probe.timeout_s):
            return await _exchange(address, port, probe, credential)
    except TimeoutError:
        raise NoAnswer(f"{probe.path} gave no answer in {probe.timeout_s:g} s") from None
    except OSError as error:
        raise_if_starved(error)
        raise NoAnswer(f"{probe.path}: {error.strerror or error}") from error
    except httptools.HttpParserError as error:
        raise NoAnswer(f"{probe.path}: not HTTP: {error}") from error


async def _exchange(address: str, port: int, probe: Probe, credential: Secret | None) -> Answer:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(_request(address, port, probe, credential))
        await writer.drain()
        return await _read(reader)
    finally:
        writer.transport.abort()


def _request(address: str, port: int, probe: Probe, credential: Secret | None) -> bytes:
    host = f"[{address}]" if ":" in address else address
    body = b"" if probe.body is None else json.dumps(dict(probe.body)).encode()
    lines = [
        f"{probe.method} {probe.path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Connection: close",
        "Accept-Encoding: identity",
        f"Content-Length: {len(body)}",
    ]
    if probe.body is not None:
        lines.append("Content-Type: application/json")
    if credential:
        lines.append(f"Authorization: Bearer {credential.reveal()}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _read(reader: asyncio.StreamReader) -> Answer:
    answer = _Reader()
    parser = httptools.HttpResponseParser(answer)
    while not answer.complete:
        data = await reader.read(1 << 16)
        if not data:
            # Without a length the end of the connection is the end of the body.
            if not parser.get_status_code():
                raise NoAnswer("closed the connection without an answer")
            break
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
    return Answer(status=parser.get_status_code(), body=bytes(answer.body))
