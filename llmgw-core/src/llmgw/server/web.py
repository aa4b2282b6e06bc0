"""The two HTTP applications of a server: the API, and the operator's side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Application = Callable[..., Awaitable[None]]


def with_admin(api: Application, admin: Application | None) -> Application:
    """Return one application that has the operator's side below `/admin`; None: it has not."""
    if admin is None:
        return api

    async def both(
        scope: MutableMapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        path: str = scope.get("path", "")
        is_admin = path == "/admin" or path.startswith("/admin/")
        await (admin if is_admin else api)(scope, receive, send)

    return both
