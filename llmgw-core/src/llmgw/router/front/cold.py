"""Requests that no engine answers, handed to the ASGI application: models, health, admin.

An ASGI server for one request at a time, with what those routes need: a body that has been
read already, answers whole or in pieces with back-pressure, and the news that the client
left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect

from llmgw.errors import RequestError
from llmgw.logs import get_logger
from llmgw.router.forward import Client
from llmgw.router.ingress import Request
from llmgw.router.replies import error_reply

log = get_logger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[..., Awaitable[None]]


class _ClientLeft(OSError):
    """What an ASGI server raises from `send`; Starlette makes it its own ClientDisconnect."""


class ColdCycle:
    """Runs the application for one request."""

    def __init__(
        self, client: Client, app: Application, request: Request, state: dict[str, Any]
    ) -> None:
        self._client = client
        self._app = app
        self._request = request
        self._state = state
        self._body_given = False
        self._start: Message = {}
        self._pieces = False
        self._begun = False
        self._complete = False
        self._left = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def client_left(self) -> None:
        self._left.set()
        self._writable.set()

    def client_paused(self) -> None:
        self._writable.clear()

    def client_resumed(self) -> None:
        self._writable.set()

    async def run(self, transport: asyncio.BaseTransport | None) -> None:
        """Call the application, and answer for it where it fails."""
        try:
            await self._app(self._scope(transport), self._receive, self._send)
        except (_ClientLeft, ClientDisconnect):
            pass  # which is the client's right, and no fault to write down
        except Exception:
            log.exception("request failed", path=self._request.path.decode("latin-1"))
        if self._complete or self._left.is_set():
            return
        if self._begun:
            self._client.cut()
            return
        self._complete = True
        self._client.reply(
            error_reply(
                RequestError(
                    "the server failed to answer; its log says why",
                    status=500,
                    code="internal_error",
                    kind="api_error",
                )
            )
        )

    def _scope(self, transport: asyncio.BaseTransport | None) -> dict[str, Any]:
        request = self._request
        path = request.path
        if path.startswith((b"http://", b"https://")):  # absolute form (RFC 9112 3.2.2)
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        server = transport.get_extra_info("sockname") if transport is not None else None
        client = transport.get_extra_info("peername") if transport is not None else None
        if isinstance(client, tuple):
            # Behind a proxy the port is not the client's: the address alone is known.
            client = client[:2] if client[0] == request.peer else (request.peer, 0)
        headers = list(request.headers)
        if request.length is not None:
            headers.append((b"content-length", b"%d" % request.length))
        secure = transport is not None and transport.get_extra_info("sslcontext") is not None
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1" if request.is_http11 else "1.0",
            "method": request.method.decode("ascii"),
            "scheme": "https" if secure else "http",
            "path": unquote(path.decode("ascii", "replace")),
            "raw_path": path,
            "query_string": request.query,
            "root_path": "",
            "headers": headers,
            "client": client if isinstance(client, tuple) else None,
            "server": tuple(server[:2]) if isinstance(server, tuple) else None,
            "state": self._state.copy(),
        }

    async def _receive(self) -> Message:
        if not self._body_given:
            self._body_given = True
            return {
                "type": "http.request",
                "body": bytes(self._request.body),
                "more_body": False,
            }
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left.is_set():
            # Raised, so that a handler that streams for ever does not go on for nobody.
            raise _ClientLeft("the client left")
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._complete or message["type"] != "http.response.body":
            return
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if not self._begun:
            self._begin(body, more)
        elif body and self._request.method != b"HEAD":
            self._client.write(self._client.piece(body) if self._pieces else body)
        if not more:
            self._complete = True
            self._client.finish(ended=self._pieces)
        elif not self._writable.is_set():
            await self._writable.wait()

    def _begin(self, body: bytes, more: bool) -> None:
        self._begun = True
        lines: list[bytes] = []
        length: int | None = None if more else len(body)
        for name, value in self._start.get("headers", ()):
            lowered = name.lower()
            if lowered == b"content-length":
                length = int(value)
            elif lowered not in (b"transfer-encoding", b"connection", b"date"):
                lines.append(b"%b: %b\r\n" % (lowered, value))
        lines.append(b"x-request-id: %b\r\n" % self._request.request_id)
        is_head = self._request.method == b"HEAD"
        self._pieces = length is None and not is_head
        head = self._client.head(
            self._start["status"], b"".join(lines), 0 if is_head and length is None else length
        )
        if body and not is_head:
            head += self._client.piece(body) if self._pieces else body
        self._client.write(head)
