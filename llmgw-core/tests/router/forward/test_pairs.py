"""Requests that two engines share: strict stand-ins of both protocols, behind a real router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from llmgw.config.server import Deadlines, Retry, RouterSettings
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import Epoch
from llmgw.domain.roles import Role
from llmgw.testing.engine_script import Close, Die, Hang, Script, ScriptedEngine, Wait
from llmgw.testing.eventually import eventually
from llmgw.testing.pairs import (
    TEXT,
    BootstrapEngines,
    NixlEngines,
    PairedEngines,
    instead,
    refusal,
    whole_answer,
)
from llmgw.testing.raw_http import RawAnswer, connect, post
from llmgw_engine_sglang.adapter import SglangAdapter
from llmgw_engine_vllm.adapter import VllmAdapter

pytestmark = pytest.mark.anyio

BUSY = Script.plain({"error": {"message": "full"}}, status=503)
BROKEN = Script.plain({"error": {"message": "EngineCore encountered an issue"}}, status=500)
HANGS_UP = Script.raw(Wait(0.05), Close(reset=True))
SILENT = Script.raw(Hang())
ADAPTERS = {"vllm": VllmAdapter(), "sglang": SglangAdapter()}
BOTH = pytest.mark.parametrize("kind", ["vllm", "sglang"])


@dataclass
class Pairs:
    """A pair of engines and the router in front of it."""

    kind: str
    engines: PairedEngines
    router: Any
    make_endpoint: Callable[..., Endpoint]

    def publish(self, *extra: tuple[str, ScriptedEngine, Role | None], **more: Any) -> None:
        """Publish p1 and d1, and these as a second choice."""
        pair = (
            ("p1", self.engines.prefill, Role.PREFILL),
            ("d1", self.engines.decode, Role.DECODE),
        )
        port = BootstrapEngines.bootstrap_port
        endpoints = [
            self.make_endpoint(
                engine.url,
                name=name,
                engine=self.kind,
                role=role,
                meeting_port=port if role is Role.PREFILL else None,
                priority=int(name in ("p1", "d1")),
                **more,
            )
            for name, engine, role in (*pair, *extra)
        ]
        self.router.router.publish_endpoints(tuple(endpoints), Epoch(2))

    async def chat(self, **fields: Any) -> RawAnswer:
        answer: RawAnswer = await self.router.chat(**fields)
        return answer

    def counts(self) -> tuple[int, int]:
        """Return how often each engine was asked: prefill, decode."""
        return len(self.engines.prefill.requests), len(self.engines.decode.requests)

    def outcomes(self, endpoint: str) -> dict[str, int]:
        found: dict[str, int] = self.router.router.metrics.series("demo", endpoint).outcomes
        return found

    async def all_given_back(self) -> None:
        """Return once nothing is in flight, by any count."""
        states = self.router.router.selector.states
        series = self.router.router.metrics.series
        await eventually(lambda: not any(item.in_flight for item in states()))
        assert not any(item.tokens_in_flight for item in states())
        assert not any(series("demo", item.endpoint.id).in_flight for item in states())


MakePairs = Callable[..., Any]


@pytest.fixture
async def make_pairs(
    start_router: Any, make_endpoint: Callable[..., Endpoint]
) -> AsyncIterator[MakePairs]:
    """Return a function that starts a pair of engines of a kind and a router before them."""
    running: list[PairedEngines] = []

    async def make(kind: str, **deadlines: float) -> Pairs:
        engines: PairedEngines = NixlEngines() if kind == "vllm" else BootstrapEngines()
        running.append(await engines.__aenter__())
        settings = RouterSettings(deadlines=Deadlines(**deadlines), retry=Retry(budget_floor=20))
        router = await start_router(adapters=ADAPTERS, settings=settings)
        pairs = Pairs(kind, engines, router, make_endpoint)
        pairs.publish()
        return pairs

    yield make
    for engines in running:
        await engines.__aexit__()


def text_of(answer: RawAnswer) -> str:
    """Return the words of an answer, streamed or not."""
    if not (answer.header("content-type") or "").startswith("text/event-stream"):
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content
    events = [json.loads(item) for item in answer.events() if item != "[DONE]"]
    return "".join(
        choice["delta"]["content"] for item in events for choice in item["choices"]
    ).strip()


@BOTH
@pytest.mark.parametrize("stream", [True, False])
async def test_the_prompt_is_computed_by_one_engine_and_the_answer_by_the_other(
    make_pairs: MakePairs, kind: str, stream: bool
) -> None:
    pairs = await make_pairs(kind)
    answer = await pairs.chat(stream=stream, max_tokens=20, min_tokens=3)
    assert (answer.status, text_of(answer)) == (200, TEXT)
    assert pairs.counts() == (1, 1)
    # What the client asked of the answer is for the engine that gives it.
    asked = pairs.engines.decode.requests[0].json()
    assert (asked["max_tokens"], asked["min_tokens"]) == (20, 3)
    await pairs.all_given_back()
    assert pairs.outcomes("p1") == pairs.outcomes("d1") == {"ok": 1}


@BOTH
async def test_the_answer_names_both_engines_and_says_why(make_pairs: MakePairs, kind: str) -> None:
    pairs = await make_pairs(kind)
    body = {"model": "demo", "messages": []}
    answer = await pairs.router.ask(
        post("/v1/chat/completions", body, headers={"x-llmgw-explain": "1"})
    )
    assert answer.header("x-llmgw-endpoint") == "p1, d1"
    assert answer.header("x-llmgw-attempts") == "1"
    explained = answer.header("x-llmgw-explain") or ""
    assert explained.startswith("prompt on p1 by least_outstanding")
    assert "answer on d1 by least_outstanding" in explained


@BOTH
async def test_usage_and_times_are_counted_once(make_pairs: MakePairs, kind: str) -> None:
    pairs = await make_pairs(kind)
    await pairs.chat(stream=True)
    await pairs.all_given_back()
    (record,) = pairs.router.router.ledger.batch().records
    assert (record.endpoint, record.prompt_tokens, record.completion_tokens) == ("d1", 7, 3)
    await eventually(lambda: b'"prefill":"p1"' in pairs.router.access.getvalue())
    totals = pairs.router.router.metrics.totals()
    assert (totals.requests, totals.output_tokens, sum(totals.first_token)) == (1, 3, 1)
    page = (await pairs.router.router.metrics_page()).decode()
    assert 'llmgw_requests_total{model="demo",endpoint="p1",role="prefill",outcome="ok"} 1' in page
    assert 'llmgw_requests_total{model="demo",endpoint="d1",role="decode",outcome="ok"} 1' in page


@BOTH
async def test_a_client_cannot_choose_whose_cache_is_read(make_pairs: MakePairs, kind: str) -> None:
    pairs = await make_pairs(kind)
    stolen = {"do_remote_prefill": True, "remote_request_id": "chatcmpl-of-somebody"}
    body = (
        b'{"model":"demo","messages":[{"role":"user","content":"hi"}],"kv_transfer_params":%b,'
        b'"bootstrap_room":1,"\\u0062ootstrap_room":2,"bootstrap_host":"10.1.2.3",'
        b'"kv_transfer_params":%b}' % ((json.dumps(stolen).encode(),) * 2)
    )
    answer = await pairs.router.ask(post("/v1/chat/completions", body))
    assert (answer.status, text_of(answer)) == (200, TEXT)
    if kind == "vllm":
        asked = pairs.engines.decode.requests[0].json()
        assert asked["kv_transfer_params"]["remote_request_id"] == "chatcmpl-1"


@BOTH
@pytest.mark.parametrize("failing", [HANGS_UP, BUSY, BROKEN, Script.raw(b"no http\r\n\r\n")])
async def test_a_failing_prefill_engine_is_passed_over_before_the_client_has_a_byte(
    make_pairs: MakePairs, kind: str, failing: Script
) -> None:
    pairs = await make_pairs(kind)
    async with ScriptedEngine(failing) as other:
        instead(pairs.engines.prefill, failing)
        other.choose = pairs.engines.computes_prompt
        pairs.publish(("p2", other, Role.PREFILL))
        answers = [await pairs.chat(stream=True) for _ in range(2)]
        await pairs.all_given_back()
    assert [text_of(answer) for answer in answers] == [TEXT, TEXT]
    assert [answer.header("x-llmgw-attempts") for answer in answers] == ["2", "1"]
    # The other engine of the pair has done nothing wrong.
    state = pairs.router.router.selector.state("d1")
    assert (state.failures, state.is_ejected) == (0, False)
    assert pairs.outcomes("d1") == {"partner_failed": 1, "ok": 2}


@BOTH
async def test_a_prefill_engine_that_nobody_listens_at_is_passed_over(
    make_pairs: MakePairs, kind: str
) -> None:
    pairs = await make_pairs(kind)
    async with ScriptedEngine() as gone, ScriptedEngine() as other:
        other.choose = pairs.engines.computes_prompt
        pairs.publish(("p0", gone, Role.PREFILL), ("p2", other, Role.PREFILL))
        await gone.stop()
        await pairs.engines.prefill.stop()
        answer = await pairs.chat()
        await pairs.all_given_back()
    assert text_of(answer) == TEXT
    assert answer.header("x-llmgw-endpoint") == "p2, d1"


@BOTH
@pytest.mark.parametrize("failing", [HANGS_UP, BUSY, Script.events('{"error": {"message": "x"}}')])
async def test_a_decode_engine_that_fails_before_its_first_byte_is_passed_over(
    make_pairs: MakePairs, kind: str, failing: Script
) -> None:
    pairs = await make_pairs(kind)
    async with ScriptedEngine() as other:
        other.choose = pairs.engines.answers
        instead(pairs.engines.decode, failing)
        pairs.publish(("d2", other, Role.DECODE))
        answer = await pairs.chat(stream=True)
        await pairs.all_given_back()
    assert text_of(answer) == TEXT
    assert answer.header("x-llmgw-endpoint") == "p1, d2"
    # The prompt is computed anew: the first cache was for the first engine.
    assert len(pairs.engines.prefill.requests) == 2
    assert pairs.router.router.selector.state("p1").failures == 0


@BOTH
async def test_with_one_pair_only_its_failure_is_told(make_pairs: MakePairs, kind: str) -> None:
    pairs = await make_pairs(kind)
    instead(pairs.engines.prefill, HANGS_UP)
    answer = await pairs.chat()
    assert answer.status == 502
    assert answer.error()["code"] == "engine_lost"
    await pairs.all_given_back()
    assert pairs.outcomes("p1") == {"reset": 1}
    assert (await pairs.chat()).status == 200


@BOTH
async def test_what_the_prefill_engine_finds_wrong_with_a_request_is_told_as_it_is(
    make_pairs: MakePairs, kind: str
) -> None:
    pairs = await make_pairs(kind)
    instead(pairs.engines.prefill, refusal("This model's maximum context length is 512 tokens"))
    answer = await pairs.chat(stream=True)
    assert answer.status == 400
    assert "maximum context length" in answer.error()["message"]
    await pairs.all_given_back()
    assert pairs.outcomes("d1") == pairs.outcomes("p1") == {"client_error": 1}
    assert pairs.router.router.metrics.totals().failed == 0


@BOTH
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_both_engines(
    make_pairs: MakePairs, kind: str, stream: bool
) -> None:
    pairs = await make_pairs(kind)
    instead(pairs.engines.prefill, SILENT)
    instead(pairs.engines.decode, SILENT)
    asked = 1 if kind == "vllm" else 2  # how many have the request by then
    async with connect(pairs.router.port) as connection:
        body = {"model": "demo", "messages": [], "stream": stream}
        connection.send(post("/v1/chat/completions", body))
        await eventually(lambda: sum(pairs.counts()) == asked)
    requests = [*pairs.engines.prefill.requests, *pairs.engines.decode.requests]
    await eventually(lambda: all(request.peer_left for request in requests))
    await pairs.all_given_back()
    assert pairs.outcomes("d1") == pairs.outcomes("p1") == {"client_left": 1}


@BOTH
async def test_one_limit_for_the_first_byte_covers_both_engines(
    make_pairs: MakePairs, kind: str
) -> None:
    """The prefill engine takes most of it, and the decode engine none of its own on top."""
    pairs = await make_pairs(kind, first_byte_min=0.6, first_byte_max=0.6)
    instead(pairs.engines.decode, SILENT)
    slow = pairs.engines.prefill.choose

    def late(request: Any) -> Script:
        assert slow is not None
        return Script((Wait(0.4), *slow(request).steps))

    pairs.engines.prefill.choose = late
    began = asyncio.get_running_loop().time()
    answer = await pairs.chat(stream=True)
    took_s = asyncio.get_running_loop().time() - began
    assert answer.error()["code"] == "first_byte_timeout"
    assert 0.5 < took_s < 0.95
    await pairs.all_given_back()
    # SGLang's prefill engine waits for the other one, so it was not done either.
    blamed = "d1" if kind == "vllm" else "p1"
    assert pairs.outcomes(blamed) == {"first_byte_timeout": 1}


async def test_a_prompt_is_due_also_where_the_answer_is_not(make_pairs: MakePairs) -> None:
    pairs = await make_pairs("vllm", first_byte_min=0.3, first_byte_max=0.3)
    instead(pairs.engines.prefill, SILENT)
    answer = await pairs.chat()
    assert answer.error()["code"] == "first_byte_timeout"
    assert pairs.outcomes("p1") == {"first_byte_timeout": 1}
    assert pairs.counts() == (1, 0)
    await pairs.all_given_back()


@BOTH
async def test_a_request_that_prefill_engines_die_of_is_refused(
    make_pairs: MakePairs, kind: str
) -> None:
    pairs = await make_pairs(kind)
    dies = Script.raw(Wait(0.1), Die())
    async with ScriptedEngine(dies) as one, ScriptedEngine(dies) as two:
        pairs.publish(("p2", one, Role.PREFILL), ("p3", two, Role.PREFILL))
        pairs.engines.prefill.choose = lambda _: dies
        first = await pairs.chat(stream=True)
        again = await pairs.chat(stream=True)
        await pairs.all_given_back()
    assert [first.error()["code"], again.error()["code"]] == ["request_quarantined"] * 2
    asked = [pairs.engines.prefill, one, two]
    assert sum(len(engine.requests) for engine in asked) == 2


@BOTH
async def test_an_ill_prefill_engine_is_left_out_and_its_partners_are_not(
    make_pairs: MakePairs, kind: str
) -> None:
    pairs = await make_pairs(kind)
    async with ScriptedEngine() as other:
        other.choose = pairs.engines.computes_prompt
        pairs.engines.prefill.choose = lambda _: BROKEN
        pairs.publish(("p2", other, Role.PREFILL))
        answers = [await pairs.chat() for _ in range(20)]
    assert {answer.status for answer in answers} == {200}
    selector = pairs.router.router.selector
    assert selector.state("p1").is_ejected
    assert not selector.state("d1").is_ejected
    assert len(pairs.engines.prefill.requests) == 5


@BOTH
async def test_a_slot_is_taken_on_both_engines_or_on_none(make_pairs: MakePairs, kind: str) -> None:
    pairs = await make_pairs(kind, queue=5.0)
    pairs.publish(max_inflight=1)
    answers = await asyncio.gather(*(pairs.chat(stream=True) for _ in range(6)))
    assert [text_of(answer) for answer in answers] == [TEXT] * 6
    assert pairs.counts() == (6, 6)
    await pairs.all_given_back()


@BOTH
@pytest.mark.parametrize("missing", ["prefill", "decode"])
async def test_half_a_pair_serves_nothing_and_says_which_half_is_missing(
    make_pairs: MakePairs, kind: str, missing: str
) -> None:
    pairs = await make_pairs(kind, queue=0.2)
    left = [item for item in pairs.router.router.selector.states() if item.endpoint.role != missing]
    pairs.router.router.publish_endpoints(tuple(item.endpoint for item in left), Epoch(3))
    answer = await pairs.chat()
    assert answer.status == 503
    assert answer.error()["code"] == "no_endpoint"
    assert f"no {missing} endpoint of model 'demo' is up" in answer.error()["message"]
    assert pairs.counts() == (0, 0)


@BOTH
async def test_an_endpoint_of_whole_requests_serves_while_a_half_is_missing(
    make_pairs: MakePairs, kind: str
) -> None:
    pairs = await make_pairs(kind)
    async with ScriptedEngine() as whole:
        whole.choose = lambda request: whole_answer(request.json())
        endpoints = (
            pairs.make_endpoint(pairs.engines.decode.url, name="d1", engine=kind, role=Role.DECODE),
            pairs.make_endpoint(whole.url, name="w1", engine=kind),
        )
        pairs.router.router.publish_endpoints(endpoints, Epoch(3))
        answers = [await pairs.chat() for _ in range(3)]
    assert [text_of(answer) for answer in answers] == [TEXT] * 3
    assert {answer.header("x-llmgw-endpoint") for answer in answers} == {"w1"}
    assert pairs.counts() == (0, 0)


async def test_what_a_pair_cannot_share_is_left_to_the_decode_engine_alone(
    make_pairs: MakePairs,
) -> None:
    """vLLM's decode engine computes prompts as well, but a cache is read once."""
    pairs = await make_pairs("vllm")
    pairs.engines.decode.choose = lambda request: whole_answer(request.json())
    bodies = [
        {"model": "demo", "prompt": ["one", "two"], "kv_transfer_params": {"remote_host": "h"}},
        {"model": "demo", "prompt": [1, 2, 3]},
    ]
    alone, shared = [await pairs.router.ask(post("/v1/completions", body)) for body in bodies]
    assert alone.header("x-llmgw-endpoint") == "d1"
    assert shared.header("x-llmgw-endpoint") == "p1, d1"
    assert pairs.counts() == (1, 2)
    assert "kv_transfer_params" not in pairs.engines.decode.requests[0].json()
    await pairs.all_given_back()


async def test_half_a_pair_refuses_what_it_cannot_do(make_pairs: MakePairs) -> None:
    pairs = await make_pairs("sglang")
    body = {"model": "demo", "input": "hi"}
    answer = await pairs.router.ask(post("/v1/embeddings", body))
    assert answer.status == 404
    assert "/v1/embeddings" in answer.error()["message"]
    assert pairs.counts() == (0, 0)
    await pairs.all_given_back()


async def test_a_prefill_engine_without_a_connector_is_found_out(make_pairs: MakePairs) -> None:
    pairs = await make_pairs("vllm")
    choice = {"index": 0, "message": {"content": "It"}, "finish_reason": "length"}
    instead(pairs.engines.prefill, Script.plain({"choices": [choice]}))
    answer = await pairs.chat()
    assert answer.status == 502
    assert answer.error()["code"] == "handover_missing"
    assert "without a KV connector" in answer.error()["message"]
    assert pairs.counts() == (1, 0)


async def test_a_router_without_the_engines_package_says_so(
    start_router: Any, make_endpoint: Callable[..., Endpoint]
) -> None:
    async with NixlEngines() as engines:
        pair = (
            make_endpoint(engines.prefill.url, name="p", engine="vllm", role=Role.PREFILL),
            make_endpoint(engines.decode.url, name="d", engine="vllm", role=Role.DECODE),
        )
        router = await start_router(endpoints=pair)
        answer = await router.chat()
    assert answer.status == 503
    assert "'vllm'" in answer.error()["message"]


@BOTH
async def test_a_connection_that_the_prefill_engine_had_closed_is_no_failure(
    make_pairs: MakePairs, kind: str
) -> None:
    pairs = await make_pairs(kind)
    assert (await pairs.chat()).status == 200
    for _ in range(3):
        for writer in list(pairs.engines.prefill._writers):  # as an engine does with idle ones
            writer.close()
        answer = await pairs.chat()
        assert (answer.status, answer.header("x-llmgw-attempts")) == (200, "1")
