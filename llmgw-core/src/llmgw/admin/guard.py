"""What browsers must not be made to do: DNS rebinding, requests from other sites, framing."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmgw.admin.replies import error_response
from llmgw.errors import RequestError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers then send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class BrowserGuard:
    """Checks `Host` always, `Origin` on whatever changes something; sets the safe headers."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._allowed = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if refusal := self._refusal(scope["method"], Headers(scope=scope)):
            await error_response(refusal)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> RequestError | None:
        hosts = headers.getlist("host")
        host = _host_name(hosts[0]) if len(hosts) == 1 else None
        if host is None or ("*" not in self._allowed and host not in self._allowed):
            return RequestError(
                "the Host header names another server; open the page by the address that it "
                "listens on",
                status=421,
                code="wrong_host",
            )
        origin = headers.get("origin")
        if method in _SAFE_METHODS or origin is None:
            return None
        if urlsplit(origin).netloc.lower() != hosts[0].lower():
            return RequestError(
                "the request comes from a page of another site", status=403, code="wrong_origin"
            )
        return None


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
