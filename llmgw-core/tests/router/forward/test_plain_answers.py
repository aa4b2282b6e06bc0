"""Answers that are no streams, and what happens when an engine fails."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.domain.secret import Secret
from llmgw.testing.engine_script import Close, Die, Hang, Script, ScriptedEngine, Send, Wait
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import connect, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
OK = Script.plain(
    {"model": "demo", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
)


async def test_an_answer_passes_byte_for_byte_and_is_counted(start_router: Any) -> None:
    body = (
        b'{ "model" : "demo", "x":1.0e5, "usage":{"prompt_tokens":3,'
        b'"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}} }'
    )
    async with ScriptedEngine(Script.plain(body)) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert answer.body == body
    assert answer.header("content-length") == str(len(body))
    record = router.router.ledger.batch().records[0]
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (3, 2, 4)


async def test_an_answer_says_where_it_came_from(start_router: Any) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        answer = await router.ask(
            post(
                CHAT, {"model": "demo"}, headers={"x-request-id": "req-42", "x-llmgw-explain": "1"}
            )
        )
    assert answer.header("x-llmgw-endpoint") == "e1"
    assert answer.header("x-llmgw-model") == "demo"
    assert answer.header("x-llmgw-attempts") == "1"
    assert answer.header("x-request-id") == "req-42"
    assert "1 of 1 usable" in answer.header("x-llmgw-explain")
    assert engine.requests[0].header("x-request-id") == "req-42"


async def test_headers_that_must_stop_at_the_router_stop(
    start_router: Any, make_endpoint: Any
) -> None:
    answer_headers = [
        ("connection", "x-inner"),
        ("x-inner", "1"),
        ("server", "engine"),
        ("set-cookie", "a=b"),
        ("keep-alive", "timeout=5"),
    ]
    script = Script.plain({"ok": 1}, headers=answer_headers)
    async with ScriptedEngine(script) as engine:
        router = await start_router(
            endpoints=[
                make_endpoint(engine.url, credential=Secret("own"), headers={"X-Tenant": "t"})
            ]
        )
        answer = await router.ask(
            post(
                CHAT,
                {"model": "demo"},
                headers={
                    "authorization": "Bearer client",
                    "cookie": "session=abc",
                    "proxy-authorization": "Basic x",
                    "te": "trailers",
                    "connection": "keep-alive, x-secret-hop",
                    "x-secret-hop": "1",
                    "x-forwarded-for": "203.0.113.9",
                    "traceparent": "00-a-b-01",
                },
            )
        )
    seen = dict(engine.requests[0].headers)
    assert seen["authorization"] == "Bearer own"
    assert seen["host"] == f"127.0.0.1:{engine.port}"
    assert seen["x-tenant"] == "t"
    assert seen["traceparent"] == "00-a-b-01"
    assert not seen.keys() & {"cookie", "proxy-authorization", "te", "x-secret-hop", "keep-alive"}
    for name in ("x-inner", "server", "set-cookie", "connection", "keep-alive"):
        assert answer.header(name) != dict(answer_headers).get(name)


async def test_a_packed_answer_is_unpacked(start_router: Any) -> None:
    body = json.dumps({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode()
    script = Script.plain(gzip.compress(body), headers=[("content-encoding", "gzip")])
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert engine.requests[0].header("accept-encoding") == "identity"
    assert answer.body == body
    assert answer.header("content-encoding") is None
    assert answer.header("content-length") == str(len(body))
    assert router.router.ledger.batch().records[0].completion_tokens == 2


async def test_a_large_answer_is_passed_on_while_it_comes(start_router: Any) -> None:
    body = b'{"data": "%b", "usage": {"prompt_tokens": 7}}' % (b"x" * 3_000_000)
    async with ScriptedEngine(Script.plain(body)) as engine:
        router = await start_router(engine.url)
        answer = await router.ask(post("/v1/embeddings", {"model": "demo", "input": "x"}))
    assert answer.body == body
    assert router.router.ledger.batch().records[0].prompt_tokens == 7


async def test_an_answer_without_a_length_ends_with_its_connection(start_router: Any) -> None:
    script = Script.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}", Close())
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert (answer.status, answer.body) == (200, b"{}")


async def test_103_and_trailers_of_an_engine_are_dropped(start_router: Any) -> None:
    script = Script.raw(
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\ncontent-type: text/evil\r\n\r\n"
    )
    async with ScriptedEngine(script) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.header("content-type") == "application/json"


async def test_what_follows_an_answer_is_nobody_s_answer(start_router: Any) -> None:
    once = b"".join(step.data for step in OK.steps if isinstance(step, Send))
    twice = once + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    async with ScriptedEngine(Script.raw(twice)) as engine:
        router = await start_router(engine.url)
        answers = [await router.chat() for _ in range(2)]
    assert all(answer.json()["model"] == "demo" for answer in answers)
    assert engine.connections == 2


# -- failures ------------------------------------------------------------------------------


async def test_a_refused_connection_is_tried_elsewhere(start_router: Any) -> None:
    async with ScriptedEngine(OK) as gone:
        dead = gone.url
    async with ScriptedEngine(OK) as engine:
        router = await start_router(dead, engine.url)
        answers = [await router.chat() for _ in range(10)]
    assert {answer.status for answer in answers} == {200}
    assert "2" in {answer.header("x-llmgw-attempts") for answer in answers}


async def test_an_engine_that_stays_away_longer_than_anybody_waits_is_502(
    start_router: Any, quick: Any
) -> None:
    async with ScriptedEngine(OK) as gone:
        dead = gone.url
    router = await start_router(dead, settings=quick(queue=0.6))
    answer = await router.chat()
    assert answer.status == 502
    assert answer.error()["code"] == "engine_unreachable"
    assert "127.0.0.1" not in answer.error()["message"]


async def test_a_request_is_held_while_the_only_engine_restarts(start_router: Any) -> None:
    async with ScriptedEngine(OK) as gone:
        port = gone.port
    router = await start_router(f"http://127.0.0.1:{port}")
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(router.chat())
        await asyncio.sleep(0.7)
        assert not asked.done()
        async with ScriptedEngine(OK, port=port):
            answer = await asked
    assert answer.status == 200
    assert int(answer.header("x-llmgw-attempts")) > 1
    await router.settled()


async def test_who_leaves_while_it_is_held_leaves_nothing_behind(start_router: Any) -> None:
    async with ScriptedEngine(OK) as gone:
        dead = gone.url
    router = await start_router(dead)
    async with connect(router.port) as connection:
        connection.send(post(CHAT, {"model": "demo"}))
        series = router.router.metrics.series("demo", "e1")
        await eventually(lambda: bool(series.outcomes.get("connect_failed")))
    await eventually(lambda: len(router.router.ledger) == 1)
    await router.settled()
    assert router.router.ledger.batch().records[0].status == 499


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_engine_is_passed_over_and_stays_in_rotation(
    start_router: Any, status: Any
) -> None:
    busy = Script.plain(
        {"error": {"message": "full"}}, status=status, headers=[("retry-after", "7")]
    )
    async with ScriptedEngine(busy) as full, ScriptedEngine(OK) as free:
        router = await start_router(full.url, free.url)
        answers = [await router.chat() for _ in range(3)]
        assert {answer.status for answer in answers} == {200}
        free.script = busy
        answer = await router.chat()
    assert answer.status == status
    assert answer.header("retry-after") == "7"
    assert all(state.failures == 0 for state in router.router.selector.states())


async def test_a_client_s_mistake_is_not_an_engine_s_fault(start_router: Any) -> None:
    refusal = {
        "error": {
            "message": "This model's maximum context length is 4096 tokens.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    }
    async with ScriptedEngine(Script.plain(refusal, status=400)) as one, ScriptedEngine(OK) as two:
        router = await start_router(one.url)
        for _ in range(50):
            answer = await router.chat()
            assert answer.status == 400
            assert answer.error()["code"] == "context_length_exceeded"
        one.script = OK
        assert (await router.chat()).status == 200
    assert not two.requests


@pytest.mark.parametrize(("status", "tries"), [(500, 1), (502, 2), (504, 2)])
async def test_which_statuses_are_tried_again(start_router: Any, status: Any, tries: Any) -> None:
    script = Script.plain({"detail": "no"}, status=status)
    async with ScriptedEngine(script) as one, ScriptedEngine(script) as two:
        router = await start_router(one.url, two.url)
        answer = await router.chat()
    assert answer.status == status
    assert len(one.requests) + len(two.requests) == tries


async def test_a_reset_before_the_first_byte_is_tried_once_elsewhere(start_router: Any) -> None:
    async with ScriptedEngine(Script.raw(Close(reset=True))) as bad, ScriptedEngine(OK) as good:
        router = await start_router(bad.url, good.url)
        answers = [await router.chat(n=number) for number in range(3)]
    assert {answer.status for answer in answers} == {200}


async def test_a_plain_answer_that_breaks_off_is_502_and_not_asked_again(start_router: Any) -> None:
    broken = Script.raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{", Close()
    )
    async with ScriptedEngine(broken) as one, ScriptedEngine(broken) as two:
        router = await start_router(one.url, two.url)
        answer = await router.chat()
    assert answer.status == 502
    assert answer.error()["code"] == "engine_lost"
    assert len(one.requests) + len(two.requests) == 1


async def test_an_engine_that_speaks_no_http_is_502(start_router: Any) -> None:
    async with ScriptedEngine(Script.raw(b"SSH-2.0-OpenSSH\r\n\r\n", Close())) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert answer.status == 502


async def test_a_request_that_kills_two_engines_is_refused_from_then_on(start_router: Any) -> None:
    die = Script.raw(Die())
    async with ScriptedEngine(die) as one, ScriptedEngine(die) as two, ScriptedEngine(die) as three:
        router = await start_router(one.url, two.url, three.url)
        first = await router.chat(poison=True)
        second = await router.chat(poison=True)
        deaths = len(one.requests) + len(two.requests) + len(three.requests)
        for engine in (one, two, three):
            engine.script = OK
        other = await router.chat(poison=False)
    assert first.status == second.status == 500
    assert first.error()["code"] == second.error()["code"] == "request_quarantined"
    assert deaths == 2
    assert other.status == 200


async def test_a_stream_s_first_byte_has_a_limit_and_then_goes_elsewhere(
    start_router: Any, quick: Any
) -> None:
    settings = quick(first_byte_min=0.3, first_byte_max=0.3)
    async with (
        ScriptedEngine(Script.raw(Hang())) as hung,
        ScriptedEngine(Script.events('{"choices": []}')) as good,
    ):
        router = await start_router(hung.url, settings=settings)
        answer = await router.chat(stream=True)
        assert answer.status == 504
        assert answer.error()["code"] == "first_byte_timeout"
        await hung.wait_until(lambda engine: engine.requests[0].peer_left)
        both = await start_router(hung.url, good.url, settings=settings)
        answers = [await both.chat(stream=True) for _ in range(2)]
    assert {answer.status for answer in answers} == {200}


async def test_a_plain_request_may_take_longer_than_a_stream_s_first_byte(
    start_router: Any, quick: Any
) -> None:
    slow = Script((Wait(0.7), *OK.steps))
    async with ScriptedEngine(slow) as engine:
        router = await start_router(
            engine.url, settings=quick(first_byte_min=0.2, first_byte_max=0.2, between_chunks=0.2)
        )
        answer = await router.chat()
    assert answer.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_on_the_whole_request_is_kept_where_one_is_set(
    start_router: Any, quick: Any, stream: bool
) -> None:
    async with ScriptedEngine(Script.raw(Hang())) as engine:
        router = await start_router(engine.url, settings=quick(whole_request=0.4))
        answer = await router.chat(stream=stream)
    assert answer.status == 504
    assert answer.error()["code"] == "whole_request_timeout"
    assert router.in_flight == 0


async def test_one_hung_engine_does_not_hold_the_rest(
    start_router: Any, make_endpoint: Any
) -> None:
    async with ScriptedEngine(Script.raw(Hang())) as hung, ScriptedEngine(OK) as good:
        router = await start_router(
            endpoints=[
                make_endpoint(hung.url, name="a", models=("stuck",), max_inflight=50),
                make_endpoint(good.url, name="b"),
            ],
            settings=RouterSettings(queue={"length": 0}),
        )
        clients = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(60)]
        for _, writer in clients:
            writer.write(post(CHAT, {"model": "stuck"}))
        await hung.wait_until(lambda engine: len(engine.requests) == 50)
        assert (await router.chat()).status == 200
        over = await router.ask(post(CHAT, {"model": "stuck"}))
        assert over.status == 429
        assert int(over.header("retry-after")) >= 1
        for _, writer in clients:
            writer.close()
        await router.settled()


# -- connections ---------------------------------------------------------------------------


async def test_connections_to_engines_are_reused(start_router: Any) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        for _ in range(5):
            await router.chat()
    assert engine.connections == 1


async def test_a_kept_connection_that_just_died_costs_the_client_nothing(start_router: Any) -> None:
    def choose(request: Any) -> Any:
        return OK if request.number_on_connection == 1 else Script.raw(Close())

    async with ScriptedEngine(OK, choose=choose) as engine:
        router = await start_router(engine.url)
        answers = [await router.chat() for _ in range(20)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.header("x-llmgw-attempts") for answer in answers} == {"1"}
    assert router.router.selector.states()[0].failures == 0


async def test_an_engine_restarted_on_its_port_is_found_again(start_router: Any) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        await router.chat()
        port = engine.port
    async with ScriptedEngine(OK, port=port):
        assert (await router.chat()).status == 200


async def test_a_client_that_keeps_its_connection_gets_every_answer_on_it(
    start_router: Any,
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url)
        async with connect(router.port) as client:
            for _ in range(10):
                client.send(post(CHAT, {"model": "demo"}))
                assert (await client.answer()).status == 200
    assert len(engine.requests) == 10
