"""What is answered without asking anybody: preflights, OPTIONS, and methods that a route lacks."""

from __future__ import annotations

from llmgw.errors import RequestError
from llmgw.router.front.front import Front
from llmgw.router.ingress import Request
from llmgw.router.replies import Reply, error_reply


def answer_without_engine(request: Request, front: Front) -> Reply | None:
    """Return the answer; None: it is for the application to give."""
    route = front.hot.get(request.path)
    is_options = request.method == b"OPTIONS"
    asks_method = request.header(b"access-control-request-method") is not None
    if is_options and asks_method and request.origin is not None:
        asked = request.header(b"access-control-request-headers")
        return front.cors.preflight(request.origin, asked)
    if route is None:
        return None
    allow = (b"allow", b"POST, OPTIONS")
    if is_options:
        return Reply(204, b"", (allow,))
    error = RequestError(f"{route.path} takes POST only", status=405, code="method_not_allowed")
    return error_reply(error, route.dialect, (allow,))
