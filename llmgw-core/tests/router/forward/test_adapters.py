"""A request for a LoRA adapter: told to the engine by the name that the engine has for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.domain.endpoints import ModelState, ModelStatus
from llmgw.domain.ids import ModelName, ReplicaId
from llmgw.testing.engine_script import Script, ScriptedEngine

pytestmark = pytest.mark.anyio
MODELS = (
    ModelStatus(names=(ModelName("demo"),), state=ModelState.SERVING),
    ModelStatus(names=(ModelName("sql"),), state=ModelState.SERVING),
)


@pytest.mark.parametrize("told", ["sql", "demo:sql"])
async def test_the_engine_hears_its_own_name_and_the_client_the_asked_one(
    start_router: Any, make_endpoint: Any, told: str
) -> None:
    chunk = json.dumps({"model": told, "choices": [{"index": 0, "delta": {"content": "x"}}]})
    async with ScriptedEngine(Script.events(chunk)) as engine:
        able = make_endpoint(engine.url, replica=ReplicaId("r1"), adapters={ModelName("sql"): told})
        router = await start_router(endpoints=[able], models=MODELS)
        answer = await router.chat(stream=True, model="sql")
    assert engine.requests[0].json()["model"] == told
    (event,) = (json.loads(item) for item in answer.events()[:-1])
    assert event["model"] == "sql"


async def test_an_endpoint_without_the_adapter_gets_no_request_for_it(
    start_router: Any, make_endpoint: Any
) -> None:
    script = Script.events(json.dumps({"model": "sql", "choices": []}))
    async with ScriptedEngine(script) as able, ScriptedEngine(script) as other:
        router = await start_router(
            endpoints=[
                make_endpoint(
                    able.url, name="a", replica=ReplicaId("a"), adapters={ModelName("sql"): "sql"}
                ),
                make_endpoint(other.url, name="b", replica=ReplicaId("b")),
            ],
            models=MODELS,
        )
        for _ in range(4):
            await router.chat(stream=True, model="sql")
    assert len(able.requests) == 4
    assert other.requests == []
