"""The declared table of routes: what may pass to an engine, and with which right.

Nothing that is not listed here reaches an engine (C062). Paths match byte for byte:
no decoding, no folding of slashes, so that no second spelling slips past a check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from llmgw.domain.keys import Scope


class ModelPlace(StrEnum):
    """Where a request says which model it wants."""

    JSON = "json"  #: top-level field `model` of a JSON body
    MULTIPART = "multipart"  #: field `model` of a form
    PATH = "path"  #: the rest of the path
    NONE = "none"  #: the route is about no single model


class Dialect(StrEnum):
    """Whose shapes errors, usage and stream events have."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Assembly(StrEnum):
    """How a stream of this route folds into a plain answer, where an engine needs that."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path of the API."""

    path: str  #: on our side; ends in `{model}` where the model is the rest of the path
    engine_path: str = ""  #: on the engine's side; "" for routes that we answer ourselves
    methods: tuple[str, ...] = ("POST",)
    model: ModelPlace = ModelPlace.JSON
    scope: Scope | None  #: what a key must have; None: public, and gives nothing away
    operation: str  #: `gen_ai.operation.name` in metrics and access records
    dialect: Dialect = Dialect.OPENAI
    asks_usage: bool = False  #: streams report usage only where `stream_options` asks for it
    assembly: Assembly | None = None
    prompt_fields: tuple[str, ...] = ()  #: which a balancer may look at, the first present one


def _engine(path: str, operation: str, *fields: str, **more: object) -> Route:
    return Route(
        path=path,
        engine_path=path,
        scope=Scope.INFERENCE,
        operation=operation,
        prompt_fields=fields,
        **more,  # type: ignore[arg-type]  # keywords of Route, spelt out in the table below
    )


def _form(path: str, operation: str) -> Route:
    return _engine(path, operation, model=ModelPlace.MULTIPART)


HOT: tuple[Route, ...] = (
    _engine("/v1/chat/completions", "chat", "messages", asks_usage=True, assembly=Assembly.CHAT),
    _engine(
        "/v1/completions",
        "text_completion",
        "prompt",
        asks_usage=True,
        assembly=Assembly.COMPLETION,
    ),
    _engine("/v1/embeddings", "embeddings", "input"),
    _engine("/v1/responses", "responses", "input"),
    _engine("/v1/messages", "messages", "messages", dialect=Dialect.ANTHROPIC),
    _engine("/v1/messages/count_tokens", "count_tokens", "messages", dialect=Dialect.ANTHROPIC),
    _engine("/v1/rerank", "rerank", "query"),
    _engine("/rerank", "rerank", "query"),
    _engine("/v2/rerank", "rerank", "query"),
    _engine("/v1/score", "score", "text_1"),
    _engine("/score", "score", "text_1"),
    _engine("/classify", "classify", "input"),
    _engine("/tokenize", "tokenize", "prompt", "messages"),
    _engine("/detokenize", "detokenize"),
    _form("/v1/audio/transcriptions", "transcription"),
    _form("/v1/audio/translations", "translation"),
    _engine("/v1/audio/speech", "speech", "input"),
    _engine("/v1/images/generations", "image_generation", "prompt"),
    _form("/v1/images/edits", "image_edit"),
    _form("/v1/images/variations", "image_variation"),
    _engine("/v1/moderations", "moderation", "input"),
)
"""Answered by an engine. Newer generations of the OpenAI and Anthropic interfaces, and the
scoring routes of vLLM and SGLang by those engines' own paths."""

COLD: tuple[Route, ...] = (
    Route(
        path="/v1/models",
        methods=("GET", "HEAD"),
        model=ModelPlace.NONE,
        scope=Scope.MODELS,
        operation="list_models",
    ),
    Route(
        path="/v1/models/{model}",
        methods=("GET", "HEAD"),
        model=ModelPlace.PATH,
        scope=Scope.MODELS,
        operation="retrieve_model",
    ),
    Route(
        path="/healthz",
        methods=("GET", "HEAD"),
        model=ModelPlace.NONE,
        scope=None,
        operation="health",
    ),
    # Where engines have it, and load tests and clients written for them look first.
    Route(
        path="/health",
        methods=("GET", "HEAD"),
        model=ModelPlace.NONE,
        scope=None,
        operation="health",
    ),
    Route(
        path="/readyz",
        methods=("GET", "HEAD"),
        model=ModelPlace.NONE,
        scope=None,
        operation="readiness",
    ),
)
"""Answered by the router itself, over ASGI."""


def hot_table(prefix: str = "", routes: Sequence[Route] = HOT) -> Mapping[bytes, Route]:
    """Return the hot routes by raw path, each below `prefix`."""
    table: dict[bytes, Route] = {}
    for route in routes:
        key = (prefix + route.path).encode()
        if key in table:
            raise ValueError(f"route {route.path} is declared twice")
        table[key] = route
    return table
