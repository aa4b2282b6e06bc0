"""One llmgw with llama.cpp behind it and keys on, for the clients that people really use.

The clients are those of requirements/clients.txt; where they are not installed (anywhere but in
`nox -s clients`) nothing here is collected.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from llmgw.cli.up.plan import DEMO_WEIGHTS
from llmgw.testing.engine_script import Received, Script, ScriptedEngine
from llmgw.testing.site import Site, wait_for
from llmgw.testing.tiny_gguf import write_tiny_gguf

if importlib.util.find_spec("anthropic") is None:
    collect_ignore_glob = ["test_*.py"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where it is, and the key that opens it."""

    url: str  #: without `/v1`
    key: str
    chat_model: str = "smollm2"
    embedding_model: str = "acme/embedder:tiny"
    calling_model: str = "caller"  #: calls `get_weather` whatever it is asked
    question: str = "Which city is the capital of France?"

    @property
    def base_url(self) -> str:
        """What OpenAI's clients call so."""
        return f"{self.url}/v1"

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(
            f"{self.url}{path}",
            json=body,
            headers={"authorization": f"Bearer {self.key}"},
            trust_env=False,
            timeout=60,
        )


@pytest.fixture(scope="session")
def calling_engine() -> Iterator[str]:
    """URL of a stand-in that calls a tool: no model this small does, and llama.cpp makes it only
    where it knows the template's way of calling (docs/engines/llamacpp.md)."""
    engine = ScriptedEngine(choose=_call)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(engine):
        yield engine.url


def _call(request: Received) -> Script:
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    whole = {"id": "c1", "object": "chat.completion", "created": 1, "model": "caller"}
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    if not request.json().get("stream"):
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return Script.plain({**whole, "choices": [choice], "usage": usage})
    start = {**call, "function": {"name": "get_weather", "arguments": ""}}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [start]},
        *(
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            for piece in ('{"ci', 'ty": "Par', 'is"}')
        ),
    ]
    piece_of = {**whole, "object": "chat.completion.chunk"}
    choices: list[dict[str, Any]] = [
        *({"index": 0, "delta": delta, "finish_reason": None} for delta in deltas),
        {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
    ]
    events = [json.dumps({**piece_of, "choices": [choice]}) for choice in choices]
    return Script.events(*events, json.dumps({**piece_of, "choices": [], "usage": usage}))


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory, calling_engine: str) -> Iterator[Gateway]:
    """A chat model and an embedding model, each an engine of its own, and the calling one."""
    site = Site(tmp_path_factory.mktemp("site"))
    tiny = site.home / "tiny.gguf"
    write_tiny_gguf(tiny)
    catalog = site.home / "llmgw.yaml"
    catalog.write_text(yaml.safe_dump(_catalog(str(tiny), calling_engine)))
    site.up(str(catalog))
    try:
        made = Gateway(url=site.base_url, key=_new_key(site))
        _wait_until_both_answer(made)
        yield made
    finally:
        site.close()


def _catalog(tiny: str, calling_engine: str) -> dict[str, Any]:
    # Few threads: they spin while they wait, and the clients run on the same machine.
    chat = {"ctx_size": 8192, "parallel": 4, "cache_ram": 0, "threads": 2}
    embed = {"embeddings": True, "pooling": "mean", "threads": 1}
    return {
        "auth": {"api_keys": "on"},
        "endpoints": [
            {"id": "calling", "url": calling_engine, "models": ["caller"], "health_path": None}
        ],
        "models": [
            {
                "name": "smollm2",
                "aliases": ["default"],
                "profiles": [{"engine": "llamacpp", "weights": DEMO_WEIGHTS, "options": chat}],
            },
            {
                "name": "acme/embedder:tiny",
                "profiles": [{"engine": "llamacpp", "weights": f"path:{tiny}", "options": embed}],
            },
        ],
    }


def _new_key(site: Site) -> str:
    def made() -> str | None:
        server = f"http://127.0.0.1:{site.admin_port}"
        done = site.run("ctl", "--server", server, "keys", "create", "clients")
        return done.stdout.strip() if done.returncode == 0 else None

    return wait_for("a key can be made", made, 30)


def _wait_until_both_answer(gateway: Gateway) -> None:
    refusals: list[str] = []

    def answers() -> bool:
        refusals[:] = _refusals(gateway)
        return not refusals

    try:
        wait_for("both models answer", answers, 150)
    except AssertionError as late:
        raise AssertionError(f"{late}: {refusals}") from late


def _refusals(gateway: Gateway) -> list[str]:
    chat = {"model": gateway.chat_model, "max_tokens": 1, "messages": [_user("hi")]}
    embed = {"model": gateway.embedding_model, "input": "hi"}
    try:
        answers = [
            gateway.post("/v1/chat/completions", chat),
            gateway.post("/v1/embeddings", embed),
        ]
    except httpx.HTTPError as error:
        return [repr(error)]
    return [answer.text for answer in answers if answer.status_code != 200]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
