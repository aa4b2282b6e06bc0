"""The OpenAPI document, made from the declared operations and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from llmgw.admin.operations import Call, NoQuery, Operation
from llmgw.admin.replies import json_response
from llmgw.adminapi.reply import PREFIX, ErrorReply
from llmgw.store.tokens import Role

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
# Not 500: that is a mistake of ours, and a checker must find it wherever it comes.
_COMMON_ERRORS = (400, 401, 403, 421, 429, 501, 503)
_TITLES = {
    400: "The input is wrong; `problems` lists everything that is.",
    401: "No token, or one that is not valid.",
    403: "The token's role is too low.",
    404: "There is no such thing.",
    409: "The present state does not allow it.",
    412: "The catalog has been changed since.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host header names another server.",
    429: "Too many wrong tokens from this address.",
    501: "This server does not have that ability.",
    503: "Store, leader or node are away; try again.",
}


def openapi_operation(operations: Iterable[Operation]) -> Operation:
    """Return the operation that serves the document of `operations`, itself included."""
    listed = list(operations)

    async def serve(_call: Call) -> Response:
        return json_response(json.dumps(document([*listed, own])))

    own = Operation(
        method="GET",
        path="/openapi.json",
        role=Role.VIEWER,
        summary="This document.",
        handler=serve,
    )
    return own


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    listed = [operation for operation in operations if operation.path.startswith("/")]
    schemas, definitions = _schemas(listed)
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        root = path in ("/metrics", "/healthz", "/readyz")
        paths.setdefault(path if root else PREFIX + path, {})[operation.method.lower()] = (
            _operation(operation, schemas)
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "llmgw admin API", "version": metadata.version("llmgw-core")},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(
    operations: Iterable[Operation],
) -> tuple[dict[tuple[type[BaseModel], str], dict[str, Any]], dict[str, Any]]:
    wanted: dict[tuple[type[BaseModel], str], None] = {(ErrorReply, "serialization"): None}
    for operation in operations:
        if operation.reply is not None:
            wanted[(operation.reply, "serialization")] = None
        if operation.body is not None:
            wanted[(operation.body, "validation")] = None
    schemas, top = models_json_schema(list(wanted), ref_template=_REF)  # type: ignore[arg-type]  # modes are literals
    return dict(schemas), top.get("$defs", {})  # type: ignore[arg-type]  # likewise


def _operation(
    operation: Operation, schemas: dict[tuple[type[BaseModel], str], dict[str, Any]]
) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media_type: {}}
    if operation.reply is not None:
        content = {"application/json": {"schema": schemas[(operation.reply, "serialization")]}}
    error = {"application/json": {"schema": schemas[(ErrorReply, "serialization")]}}
    statuses = sorted({*_COMMON_ERRORS, *operation.errors, *((413, 415) if operation.body else ())})
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}").strip(
            "_"
        ),
        "summary": operation.summary,
        "description": f"Needs the role `{operation.role.value}`." if operation.role else "Public.",
        "security": [{"token": []}] if operation.role else [],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{
                str(status): {"description": _TITLES[status], "content": error}
                for status in statuses
            },
        },
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[(operation.body, "validation")]}},
        }
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(operation.path)
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is NoQuery:
        return []
    schema = operation.query.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": described}
        for name, described in schema.get("properties", {}).items()
    ]
