"""A quick chat with any model, through this server's own API as any client would.

The browser cannot call the API itself: it is another origin, and the page's policy lets scripts
talk to this listener only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import anyio
import httpx
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from llmgw.admin.operations import Call
from llmgw.admin.parts import AdminParts
from llmgw.adminapi.reply import Request
from llmgw.errors import NotAvailable, RequestError, TransientError

_MOST_MESSAGES = 200
_FIRST_BYTE_S = 600.0


class Message(Request):
    """One turn."""

    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=100_000)]


class ChatRequest(Request):
    """A conversation to go on with."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=_MOST_MESSAGES)]
    api_key: Annotated[str, Field(max_length=500, pattern=r"^[!-~]*$")] = ""
    """Where the API asks for one; the admin token opens nothing there."""


async def chat(call: Call) -> Response:
    """Pass the API's stream on as it comes. Raises RequestError with the API's own words."""
    request = call.body_as(ChatRequest)
    client = httpx.AsyncClient(
        base_url=_api_of(call.parts),
        trust_env=False,
        # This process talks to itself; its certificate is made out to its public name.
        verify=False,  # noqa: S501
        timeout=httpx.Timeout(_FIRST_BYTE_S, connect=5.0),
    )
    body = request.model_dump(include={"model", "messages"}) | {"stream": True}
    headers = {"authorization": f"Bearer {request.api_key}"} if request.api_key else {}
    outgoing = client.build_request("POST", "/v1/chat/completions", json=body, headers=headers)
    try:
        answer = await client.send(outgoing, stream=True)
        if answer.is_error:
            await answer.aread()
            raise RequestError(_words(answer), status=answer.status_code, code="api_refused")
    except httpx.HTTPError as error:
        await client.aclose()
        raise TransientError(f"the API does not answer: {error}") from None
    except BaseException:
        await client.aclose()
        raise

    async def pass_on() -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.aiter_raw():
                yield chunk
        finally:
            # Also when the browser has left, which cancels this: closing is what frees the engine.
            with anyio.CancelScope(shield=True):
                await answer.aclose()
                await client.aclose()

    return StreamingResponse(pass_on(), media_type="text/event-stream")


def _api_of(parts: AdminParts) -> str:
    if parts.api_url is None:
        raise NotAvailable("this server did not say where its API is; use `llmgw ctl chat`")
    return parts.api_url


def _words(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the API answered {answer.status_code}"
