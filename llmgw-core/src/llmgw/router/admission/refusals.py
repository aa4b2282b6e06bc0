"""What a client is told when its request cannot run. Values only: one wording for each case."""

from __future__ import annotations

import math

from llmgw.domain.roles import Role
from llmgw.errors import RequestError
from llmgw.router.table import ModelRoute


def whole_seconds(seconds: float) -> float:
    """Return a `Retry-After`: whole seconds, at least 1 (RFC 9110 10.2.3 knows no fractions)."""
    return float(max(1, math.ceil(seconds)))


def saturated(route: ModelRoute, *, waited_s: float | None, retry_after_s: float) -> RequestError:
    """Everything runs, all of it is full. waited_s: None if it was not even let into the line."""
    what = (
        "as many requests wait as may"
        if waited_s is None
        else f"no slot became free within {waited_s:.0f} s"
    )
    return RequestError(
        f"model {route.name!r} is saturated: {what}; try again later",
        status=429,
        code="saturated",
        kind="rate_limit_error",
        param="model",
        retry_after_s=whole_seconds(retry_after_s),
    )


def outranked(route: ModelRoute, *, retry_after_s: float) -> RequestError:
    """It gave up its place to a request of a higher class."""
    return RequestError(
        f"model {route.name!r} is saturated: a request of a higher priority took the place",
        status=429,
        code="saturated",
        kind="rate_limit_error",
        param="model",
        retry_after_s=whole_seconds(retry_after_s),
    )


def held_back(route: ModelRoute, *, retry_after_s: float) -> RequestError:
    """An engine died of its like, and where another one like it runs there is no room."""
    return RequestError(
        f"an engine of model {route.name!r} died while it worked on a request like this one, so "
        "it must wait until another like it has been answered",
        status=503,
        code="request_suspected",
        kind="server_error",
        retry_after_s=whole_seconds(retry_after_s),
    )


def unplaceable(route: ModelRoute, *, retry_after_s: float) -> RequestError:
    """The control plane has said why nothing can run."""
    reason = route.refusal.sentence if route.refusal else "no node can run it"
    return RequestError(
        f"model {route.name!r} cannot run now: {reason}",
        status=503,
        code="unplaceable",
        kind="server_error",
        param="model",
        retry_after_s=whole_seconds(retry_after_s),
    )


def no_endpoint(route: ModelRoute, *, waited_s: float, retry_after_s: float) -> RequestError:
    """Nothing serves the model, and nothing came up in time."""
    waited = f"; waited {waited_s:.0f} s for it to start" if waited_s >= 1 else ""
    return RequestError(
        f"no {_missing_half(route)}endpoint of model {route.name!r} is up{waited}",
        status=503,
        code="no_endpoint",
        kind="server_error",
        param="model",
        retry_after_s=whole_seconds(retry_after_s),
    )


def _missing_half(route: ModelRoute) -> str:
    """Return `prefill ` or `decode ` where the one is missing and the other is of no use by itself."""
    if route.prefill is None:
        return ""
    for half, role in ((route.prefill, Role.PREFILL), (route, Role.DECODE)):
        if all(endpoint.draining for endpoint in half.endpoints):
            return f"{role} "
    return ""


def ending() -> RequestError:
    """The router ends while the request waits; another one may take it at once."""
    return RequestError(
        "this router is being stopped; try again",
        status=503,
        code="shutting_down",
        kind="server_error",
        retry_after_s=1.0,
    )


def withdrawn(name: str) -> RequestError:
    """The model left the catalog while the request waited."""
    return RequestError(
        f"model {name!r} does not exist",
        status=404,
        code="model_not_found",
        param="model",
    )
