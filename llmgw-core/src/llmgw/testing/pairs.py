"""Stand-ins for a prefill and a decode engine that share requests, and insist on it.

    async with NixlEngines() as engines:
        ...  # requests by way of engines.prefill.url and engines.decode.url

Each speaks its engine's protocol as that was read in vLLM 0.32.0 and SGLang 0.5.23, and refuses
with 400 what the real one could not compute: a decode engine answers only what its partner has
computed the prompt of, and each prompt once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self

from llmgw.testing.engine_script import Received, Script, ScriptedEngine, Step, Until

TEXT = "It is four."


class PairedEngines:
    """Both engines, on sockets of their own."""

    def __init__(self) -> None:
        self.prefill = ScriptedEngine(choose=self.computes_prompt)
        self.decode = ScriptedEngine(choose=self.answers)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.prefill)
        await self._stack.enter_async_context(self.decode)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def computes_prompt(self, request: Received) -> Script:
        raise NotImplementedError

    def answers(self, request: Received) -> Script:
        raise NotImplementedError


class NixlEngines(PairedEngines):
    """vLLM's way: the prefill engine's answer says where the cache of the prompt lies."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: dict[str, object] = {}  #: prompts by the request that computed them

    def computes_prompt(self, request: Received) -> Script:
        body = request.json()
        asked = body.get("kv_transfer_params") or {}
        if not asked.get("do_remote_decode") or asked.get("do_remote_prefill") is not False:
            return refusal(f"not asked to hand over: {asked}")
        if body.get("stream") is not False or "stream_options" in body:
            return refusal("a stream carries no kv_transfer_params")
        if {body.get("max_tokens"), body.get("max_completion_tokens", 1)} != {1}:
            return refusal("it would compute the answer as well")
        if body.get("min_tokens", 0) > 1:
            return refusal("min_tokens must be less than or equal to max_tokens=1")
        name = f"chatcmpl-{len(self.prefill.requests)}"
        self.caches[name] = prompt_of(body)
        handed = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": "4f0c",
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": 20003,
            "tp_size": 1,
        }
        choice = {"index": 0, "message": {"content": "It"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
        return Script.plain(
            {**_answer(body), "choices": [choice], "usage": usage, "kv_transfer_params": handed}
        )

    def answers(self, request: Received) -> Script:
        body = request.json()
        given = body.get("kv_transfer_params") or {}
        name = given.get("remote_request_id")
        if not given.get("do_remote_prefill") or name not in self.caches:
            return refusal(f"no cache to read: {given}")
        if self.caches.pop(name) != prompt_of(body):
            return refusal("the cache is of another prompt")
        return whole_answer(body)


class BootstrapEngines(PairedEngines):
    """SGLang's way: both get the same request, and meet in a room of the bootstrap server."""

    bootstrap_port = 20002

    def __init__(self) -> None:
        super().__init__()
        self.computed: dict[int, object] = {}  #: prompts by room
        self.waiting: dict[int, object] = {}  #: likewise, of those who want to answer

    def computes_prompt(self, request: Received) -> Script:
        return self._meet(request, own=self.computed, other=self.waiting)

    def answers(self, request: Received) -> Script:
        return self._meet(request, own=self.waiting, other=self.computed)

    def _meet(
        self, request: Received, *, own: dict[int, object], other: dict[int, object]
    ) -> Script:
        body = request.json()
        room = body.get("bootstrap_room")
        if not isinstance(room, int):
            return refusal("Disaggregated request received without bootstrap room id.")
        if (body.get("bootstrap_host"), body.get("bootstrap_port")) != (
            "127.0.0.1",
            self.bootstrap_port,
        ):
            return refusal("there is no bootstrap server")
        if room in own:
            return refusal("the room is taken")
        own[room] = prompt_of(body)
        return after(Until(lambda: other.get(room) == own[room]), whole_answer(body))


def after(first: Step, then: Script) -> Script:
    """Return a script that takes a step before another one."""
    return Script((first, *then.steps))


def whole_answer(body: dict[str, Any]) -> Script:
    """Answer as the request asks: in events or whole, with usage."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    if not body.get("stream"):
        message = {"role": "assistant", "content": TEXT}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return Script.plain({**_answer(body), "choices": [choice], "usage": usage})
    words = [{"index": 0, "delta": {"content": f"{word} "}} for word in TEXT.split()]
    events = [json.dumps({**_answer(body), "choices": [choice]}) for choice in words]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(json.dumps({**_answer(body), "choices": [], "usage": usage}))
    return Script.events(*events)


def refusal(why: str) -> Script:
    """Refuse a request that the real engine could not compute."""
    return Script.plain({"error": {"message": why, "type": "BadRequestError"}}, status=400)


def prompt_of(body: dict[str, Any]) -> object:
    """Return what is computed first."""
    return body.get("messages", body.get("prompt"))


def instead(engine: ScriptedEngine, *scripts: Script) -> None:
    """Have an engine play these for its next requests, and then be itself again."""
    itself: Callable[[Received], Script] | None = engine.choose
    left = list(scripts)

    def choose(request: Received) -> Script:
        if left:
            return left.pop(0)
        return itself(request) if itself is not None else engine.script

    engine.choose = choose


def _answer(body: dict[str, Any]) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": body["model"]}
