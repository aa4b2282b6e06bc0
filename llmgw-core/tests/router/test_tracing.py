"""Spans of requests, as a collector gets them over OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from pydantic import SecretStr

from llmgw.config.server import RouterSettings, TracingSettings
from llmgw.router.app import Router
from llmgw.testing.engine_script import Die, Script, ScriptedEngine
from llmgw.testing.eventually import eventually
from llmgw.testing.raw_http import post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
OK = Script.plain({"model": "demo", "choices": [], "usage": USAGE})


class Collector:
    """Takes spans over HTTP, and keeps them."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], ExportTraceServiceRequest]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                post = ExportTraceServiceRequest.FromString(body)
                collector.posts.append((dict(self.headers.items()), post))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's word
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def spans(self) -> list[Span]:
        resources = [item for _, post in self.posts for item in post.resource_spans]
        return [span for item in resources for scope in item.scope_spans for span in scope.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def traced(collector: Collector, **more: Any) -> RouterSettings:
    return RouterSettings(tracing=TracingSettings(endpoint=collector.url, **more))


def attributes(of: Span) -> dict[str, object]:
    return {item.key: _plain(item) for item in of.attributes}


def _plain(item: KeyValue) -> object:
    value: AnyValue = item.value
    return getattr(value, value.WhichOneof("value") or "string_value")


def flush(router: Router) -> None:
    """Have all spans posted, which otherwise takes seconds; there are none after it."""
    assert router.forward.tracing is not None
    router.forward.tracing.close()


async def test_a_request_is_a_span_in_the_words_of_the_conventions(
    start_router: Any, collector: Collector
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        headers = {"x-request-id": "req-42", "authorization": "Bearer sk-planted"}
        body = {"model": "demo", "messages": [{"role": "user", "content": "a-planted-prompt"}]}
        await router.ask(post(CHAT, body, headers=headers))
        await router.settled()
        flush(router.router)
    (span,) = collector.spans
    assert span.name == "chat demo"
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llmgw",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 4,
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "llmgw.request_id": "req-42",
        "llmgw.endpoint": "e1",
        "llmgw.outcome": "ok",
        "llmgw.attempts": 1,
    }
    ((_, sent),) = collector.posts
    assert "planted" not in str(sent)
    resource = {item.key: _plain(item) for item in sent.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "llmgw"


async def test_the_engine_is_told_a_span_below_the_clients(
    start_router: Any, collector: Collector
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        await router.ask(post(CHAT, {"model": "demo"}, headers=headers))
        await router.settled()
        flush(router.router)
    (span,) = collector.spans
    assert span.trace_id.hex() == TRACE
    assert span.parent_span_id.hex() == PARENT
    told = [value for name, value in engine.requests[0].headers if name == "traceparent"]
    assert told == [f"00-{TRACE}-{span.span_id.hex()}-01"]
    assert engine.requests[0].header("tracestate") == "vendor=1"
    assert f'"trace_id":"{TRACE}"' in _access(router)


async def test_the_engine_is_told_of_a_trace_that_begins_here(
    start_router: Any, collector: Collector
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        await router.ask(post(CHAT, {"model": "demo"}, headers={"traceparent": "not one"}))
        await router.settled()
        flush(router.router)
    (span,) = collector.spans
    assert not span.parent_span_id
    told = engine.requests[0].header("traceparent") or ""
    # The last two digits are flags: kept, and that the id is random, which newer SDKs say.
    assert told.rpartition("-")[0] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}"
    assert int(told[-2:], 16) & 1


async def test_a_stream_tells_when_its_first_token_came(
    start_router: Any, collector: Collector
) -> None:
    async with ScriptedEngine(Script.events('{"choices":[]}')) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        await router.chat(stream=True)
        await router.settled()
        flush(router.router)
    (span,) = collector.spans
    seen = attributes(span)
    assert seen["gen_ai.request.stream"] is True
    first_s = seen["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first_s, float)
    assert 0 < first_s < 20


async def test_a_failed_request_is_a_failed_span(start_router: Any, collector: Collector) -> None:
    async with ScriptedEngine(Script((Die(),))) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        answer = await router.chat()
        await router.settled()
        flush(router.router)
    (span,) = collector.spans
    seen = attributes(span)
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert seen["http.response.status_code"] == answer.status == 502
    assert seen["error.type"] == seen["llmgw.outcome"]


async def test_a_client_that_is_refused_is_no_failure_of_ours(
    start_router: Any, collector: Collector
) -> None:
    refused = Script.plain(
        {"error": {"message": "no", "type": "invalid_request_error"}}, status=400
    )
    async with ScriptedEngine(refused) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        assert (await router.chat()).status == 400
        await router.settled()
        flush(router.router)
    (span,) = collector.spans
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert "error.type" not in attributes(span)


@pytest.mark.parametrize(
    ("sampled", "parent_based", "kept"), [("01", True, 1), ("00", True, 0), ("01", False, 0)]
)
async def test_whose_choice_counts_is_a_setting(
    start_router: Any, collector: Collector, sampled: str, parent_based: bool, kept: int
) -> None:
    settings = traced(collector, sample_ratio=0.0, parent_based=parent_based)
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=settings)
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-{sampled}"}
        await router.ask(post(CHAT, {"model": "demo"}, headers=headers))
        await router.settled()
        flush(router.router)
    assert len(collector.spans) == kept
    told = engine.requests[0].header("traceparent") or ""
    assert told.startswith(f"00-{TRACE}-")
    assert told.endswith(f"-0{kept}")


async def test_the_collectors_token_goes_along(start_router: Any, collector: Collector) -> None:
    settings = traced(collector, headers={"x-token": SecretStr("collectors")})
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=settings)
        await router.chat()
        await router.settled()
        flush(router.router)
    ((headers, _),) = collector.posts
    assert headers["x-token"] == "collectors"


async def test_a_collector_that_is_away_costs_no_request_and_one_line(
    start_router: Any, caplog: pytest.LogCaptureFixture
) -> None:
    away = TracingSettings(endpoint="http://127.0.0.1:9")
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=RouterSettings(tracing=away))
        for _ in range(3):
            assert (await router.chat()).status == 200
        await router.settled()
        flush(router.router)

    def said() -> list[str]:
        return [item.getMessage() for item in caplog.records if "traces" in item.getMessage()]

    await eventually(lambda: bool(said()))  # it tries for some seconds
    assert said() == ["traces are not taken, and dropped until they are"]


def test_an_address_without_a_path_gets_that_of_the_protocol() -> None:
    assert TracingSettings(endpoint="http://[::1]:4318/").endpoint == "http://[::1]:4318/v1/traces"
    assert TracingSettings(endpoint="https://c.example/otlp").endpoint == "https://c.example/otlp"


def _access(router: Any) -> str:
    router.router._access.flush()
    router.router._access.close()
    return str(router.access.getvalue().decode())


async def test_what_belongs_to_no_request_is_a_span_of_its_length(
    start_router: Any, collector: Collector
) -> None:
    async with ScriptedEngine(OK) as engine:
        router = await start_router(engine.url, settings=traced(collector))
        router.router.forward.tracing.note("plan", took_s=1.5, attributes={"llmgw.plan.actions": 2})
        flush(router.router)
    (span,) = collector.spans
    assert (span.name, span.kind) == ("plan", Span.SPAN_KIND_INTERNAL)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_500_000_000
    assert attributes(span) == {"llmgw.plan.actions": 2}
