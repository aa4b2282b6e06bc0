"""Spans of requests, and of what is noted beside them, for an OpenTelemetry collector (extra `otel`).

The SDK batches spans and posts them in a thread of its own; what it cannot get rid of it drops.
Names are those of the conventions for generative AI, where there are some. Prompts, answers and
keys are in no span.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import cast

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from llmgw.config.server import TracingSettings
from llmgw.logs import get_logger
from llmgw.router.forward import Ending, Envelope
from llmgw.router.metrics import NO_FAILURES

log = get_logger(__name__)

_CONTEXT = re.compile(rb"^(traceparent|tracestate): ([^\r\n]*)\r\n", re.MULTILINE)
_POST_LIMIT_S = 5.0
_CLOSE_LIMIT_S = 2.0

Attribute = str | int | float | bool


class RequestTracing:
    """Implements `forward.Tracing`."""

    def __init__(self, settings: TracingSettings) -> None:
        # It has a word for each odd header of a client and for each batch that failed.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        share = TraceIdRatioBased(settings.sample_ratio)
        ours = Resource(
            {
                "service.name": "llmgw",
                "service.version": version("llmgw-core"),
                "service.instance.id": socket.gethostname(),
            }
        )
        self._provider = TracerProvider(
            sampler=ParentBased(share) if settings.parent_based else share,
            # Last, since OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are the operator's word.
            resource=ours.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Posts(settings)))
        self._tracer = self._provider.get_tracer("llmgw.router", version("llmgw-core"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, envelope: Envelope) -> None:
        """Open a span below the client's, if it brought one; it is the engine's parent."""
        headers = envelope.passed_headers
        given = {
            name.decode(): value.decode("latin-1") for name, value in _CONTEXT.findall(headers)
        }
        span = self._tracer.start_span(
            f"{envelope.route.operation} {envelope.target.name}",
            context=self._propagator.extract(given, context=Context()),
            kind=SpanKind.SERVER,
        )
        told: dict[str, str] = {}
        self._propagator.inject(told, context=set_span_in_context(span, Context()))
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        envelope.passed_headers = _CONTEXT.sub(b"", headers) + lines.encode("latin-1")
        envelope.span = span

    def ending(self, then: Callable[[Ending], None]) -> Callable[[Ending], None]:
        """Return what ends a request's span before `then` is called."""

        def end(ending: Ending) -> None:
            span = cast(Span, ending.envelope.span)
            if span.is_recording():
                span.set_attributes(_attributes(ending))
                failure = _failure(ending)
                if failure is not None:
                    span.set_attribute("error.type", failure)
                    span.set_status(StatusCode.ERROR)
            span.end()
            then(ending)

        return end

    def note(self, name: str, *, took_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Keep a span of something that has just ended."""
        ended = time.time_ns()
        span = self._tracer.start_span(
            name,
            context=Context(),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=ended - int(took_s * 1e9),
        )
        span.end(ended)

    def close(self) -> None:
        """Post what is left. Waits, but not for long: the collector may be away."""
        closing = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closing.start()
        closing.join(_CLOSE_LIMIT_S)


def _attributes(ending: Ending) -> dict[str, Attribute]:
    envelope, usage = ending.envelope, ending.usage
    found: dict[str, Attribute | None] = {
        "gen_ai.operation.name": envelope.route.operation,
        "gen_ai.provider.name": "llmgw",
        "gen_ai.request.model": envelope.model,
        "gen_ai.response.model": envelope.target.name,
        "gen_ai.request.stream": envelope.stream,
        "gen_ai.response.time_to_first_chunk": ending.first_token_s if envelope.stream else None,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage else None,
        "http.request.method": "POST",
        "http.route": envelope.route.path,
        "http.response.status_code": ending.status,
        "llmgw.request_id": envelope.request_id.decode("ascii"),
        "llmgw.key": envelope.grant.key_id or None,
        "llmgw.endpoint": ending.endpoint,
        "llmgw.outcome": ending.outcome,
        "llmgw.attempts": ending.attempts,
    }
    return {name: value for name, value in found.items() if value is not None}


def _failure(ending: Ending) -> str | None:
    """Return whose fault it was, in a word; None: nobody's but the client's."""
    if ending.outcome is not None:
        return None if ending.outcome in NO_FAILURES else ending.outcome
    return str(ending.status) if ending.status >= 500 else None


class _Posts(SpanExporter):
    """Posts spans, and says once when that stops working and once when it works again."""

    def __init__(self, settings: TracingSettings) -> None:
        session = requests.Session()
        # A proxy is meant for downloads; the collector is a neighbour, as engines are.
        session.trust_env = False
        self._to = settings.endpoint
        self._exporter = OTLPSpanExporter(
            settings.endpoint,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            timeout=_POST_LIMIT_S,
            session=session,
        )
        self._works = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        works = result is SpanExportResult.SUCCESS
        if works and not self._works:
            log.info("traces are taken again", collector=self._to)
        elif self._works and not works:
            log.warning("traces are not taken, and dropped until they are", collector=self._to)
        self._works = works
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's
