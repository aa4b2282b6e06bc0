"""The one question of `llmgw up --once`, asked as any client would."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx

from llmgw.errors import TransientError

QUESTION = "Which city is the capital of France?"
_LIMIT_S = 120.0


async def ask(base_url: str, model: str, on_first_token: Callable[[], None]) -> str:
    """Stream one answer and return its text. Raises TransientError saying what went wrong."""
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 64,
        "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    pieces: list[str] = []
    url = f"{base_url}/v1/chat/completions"
    try:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=_LIMIT_S) as client,
            client.stream("POST", url, json=body) as reply,
        ):
            if reply.status_code != httpx.codes.OK:
                said = (await reply.aread()).decode(errors="replace")
                raise TransientError(f"the model did not answer: {reply.status_code} {said}")
            async for line in reply.aiter_lines():
                if piece := _text_of(line):
                    if not pieces:
                        on_first_token()
                    pieces.append(piece)
    except httpx.HTTPError as error:
        raise TransientError(f"the model did not answer: {error!r}") from error
    return "".join(pieces).strip()


def _text_of(line: str) -> str:
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return ""
    event = json.loads(data)
    if "error" in event:
        raise TransientError(f"the model's answer broke off: {event['error'].get('message')}")
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
