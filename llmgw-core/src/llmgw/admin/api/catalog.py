"""The catalog: read, previewed, changed, taken back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

import anyio.to_thread
import yaml
from pydantic import Field
from starlette.responses import Response

from llmgw.admin.operations import Call, Changed, Operation
from llmgw.admin.replies import json_response
from llmgw.admin.translate import action_reply, refusal_reply
from llmgw.adminapi.catalog import (
    ApplyReply,
    ApplyRequest,
    CatalogEntryReply,
    CatalogReply,
    ChangeReply,
    EntryRequest,
    HistoryReply,
    RollbackRequest,
)
from llmgw.adminapi.explain import PlanReply
from llmgw.adminapi.reply import Request
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName
from llmgw.errors import ConfigError, Problem, RequestError
from llmgw.store.catalog import CatalogChange, CatalogEntry
from llmgw.store.tokens import Role


class HistoryQuery(Request):
    """Which part of the history."""

    name: Annotated[str, Field(max_length=300)] | None = None
    before: Annotated[int, Field(ge=1, le=2**53)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class ExportQuery(Request):
    """Which entries."""

    owner: Annotated[str, Field(max_length=300)] | None = None


async def listing(call: Call) -> Response:
    version, entries = await call.store.run(
        lambda: (call.store.catalog.version(), call.store.catalog.entries())
    )
    reply = CatalogReply(version=version, entries=tuple(_entry(entry) for entry in entries))
    return json_response(reply.model_dump_json(), headers={"etag": f'"{version}"'})


async def one(call: Call) -> Response:
    name = call.path("name")
    entries = await call.store.run(call.store.catalog.entries)
    for entry in entries:
        if entry.model.name == name:
            return json_response(
                _entry(entry).model_dump_json(), headers={"etag": f'"{entry.version}"'}
            )
    raise _no_entry(name)


async def export(call: Call) -> Response:
    owner = call.query_as(ExportQuery).owner
    entries = await call.store.run(call.store.catalog.entries)
    models = [_plain(entry.model) for entry in entries if owner in (None, entry.owner)]
    text = yaml.safe_dump({"models": models}, sort_keys=False, allow_unicode=True)
    return Response(text, media_type="application/yaml")


async def history(call: Call) -> HistoryReply:
    query = call.query_as(HistoryQuery)
    name = None if query.name is None else ModelName(query.name)
    changes = await call.store.run(
        lambda: call.store.catalog.history(name, before=query.before, limit=query.limit)
    )
    full = len(changes) == query.limit
    return HistoryReply(
        changes=tuple(_change(change) for change in changes),
        next=str(changes[-1].version) if full else None,
    )


async def plan(call: Call) -> PlanReply:
    request = call.body_as(ApplyRequest)
    _refuse_repeated(request.models)
    after = await _checked_after(call, request.models, request.remove)
    return await _preview(call, after) or PlanReply(problems=("no control plane runs here",))


async def apply(call: Call) -> Changed:
    request = call.body_as(ApplyRequest)
    _refuse_repeated(request.models)
    return await _apply(call, request.models, request.remove)


async def put(call: Call) -> Changed:
    model = call.body_as(EntryRequest).model
    if model.name != call.path("name"):
        raise ConfigError(
            "body",
            [
                Problem(
                    path="model.name",
                    message=f"must be the path's {call.path('name')!r}, got {model.name!r}",
                )
            ],
        )
    return await _apply(call, (model,), ())


async def delete(call: Call) -> Changed:
    return await _apply(call, (), (call.path("name"),))


async def rollback(call: Call) -> Changed:
    version, expected = call.body_as(RollbackRequest).version, _expected(call)
    changes = await call.store.run(
        lambda: call.store.catalog.rollback(
            version, who=call.caller.name, expected_version=expected
        )
    )
    return await _applied(call, changes, f"rolled back to version {version}")


async def _apply(call: Call, put: Sequence[Model], remove: Sequence[str]) -> Changed:
    expected = _expected(call)
    await _checked_after(call, put, remove)
    changes = await call.store.run(
        lambda: call.store.catalog.apply(
            put,
            remove=[ModelName(name) for name in remove],
            who=call.caller.name,
            expected_version=expected,
        )
    )
    return await _applied(call, changes, "changed through the admin API")


async def _applied(call: Call, changes: Sequence[CatalogChange], message: str) -> Changed:
    await call.parts.follow()
    version, entries = await call.store.run(
        lambda: (call.store.catalog.version(), call.store.catalog.entries())
    )
    reply = ApplyReply(
        version=version,
        changes=tuple(_change(change) for change in changes),
        plan=await _preview(call, tuple(entry.model for entry in entries)),
    )
    return Changed(
        reply=reply,
        kind="catalog_changed",
        subject=" ".join(f"model {change.name}" for change in changes),
        message=message,
        happened=bool(changes),
        after=[item.model_dump(mode="json", exclude={"at"}) for item in reply.changes],
        headers={"etag": f'"{version}"'},
    )


async def _checked_after(
    call: Call, put: Sequence[Model], remove: Sequence[str]
) -> tuple[Model, ...]:
    """Return the whole catalog as it would be. Raises ConfigError for all that is wrong in it."""
    replaced = {model.name for model in put} | set(remove)
    entries = await call.store.run(call.store.catalog.entries)
    kept = [entry.model for entry in entries if entry.model.name not in replaced]
    after = (*kept, *put)
    if problems := call.parts.check_catalog(after):
        raise ConfigError("catalog", _relative(problems, after, put))
    return after


async def _preview(call: Call, models: tuple[Model, ...]) -> PlanReply | None:
    view = call.parts.view
    if view is None:
        return None
    preview = await anyio.to_thread.run_sync(view.plan_preview, models)
    return PlanReply(
        actions=tuple(action_reply(action) for action in preview.plan.actions),
        unplaced=tuple(refusal_reply(refusal) for refusal in preview.refusals),
    )


def _refuse_repeated(models: Sequence[Model]) -> None:
    names = [model.name for model in models]
    problems = [
        Problem(path=f"models[{index}].name", message=f"{name!r} is given twice")
        for index, name in enumerate(names)
        if name in names[:index]
    ]
    if problems:
        raise ConfigError("catalog", problems)


def _relative(
    problems: Sequence[Problem], after: Sequence[Model], put: Sequence[Model]
) -> list[Problem]:
    """Say paths by what the caller sent, not by the whole catalog, where it is about that."""
    offset = len(after) - len(put)

    def moved(match: re.Match[str]) -> str:
        index = int(match[1]) - offset
        return f"models[{index}]" if index >= 0 else f"{after[int(match[1])].name}"

    return [
        Problem(path=re.sub(r"^models\[(\d+)\]", moved, item.path), message=item.message)
        for item in problems
    ]


def _expected(call: Call) -> int | None:
    header = call.request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return None
    if not (match := re.fullmatch(r'\s*"(\d{1,16})"\s*', header)):
        raise RequestError(
            'If-Match must be the ETag of GET /admin/v1/catalog, such as "12"', code="bad_etag"
        )
    return int(match[1])


def _entry(entry: CatalogEntry) -> CatalogEntryReply:
    return CatalogEntryReply(
        name=entry.model.name, owner=entry.owner, version=entry.version, model=_plain(entry.model)
    )


def _change(change: CatalogChange) -> ChangeReply:
    return ChangeReply(
        version=change.version,
        name=change.name,
        owner=change.owner,
        who=change.who,
        at=change.at,
        model=None if change.model is None else _plain(change.model),
    )


def _plain(model: Model) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(model.model_dump_json(exclude_defaults=True))
    return plain


def _no_entry(name: str) -> RequestError:
    return RequestError(
        f"there is no model {name!r} in the catalog; `llmgw ctl models` lists them",
        status=404,
        code="model_not_found",
    )


OPERATIONS = (
    Operation(
        method="GET",
        path="/catalog",
        role=Role.VIEWER,
        summary="All entries; the ETag is the catalog's version.",
        handler=listing,
        reply=CatalogReply,
    ),
    Operation(
        method="POST",
        path="/catalog",
        role=Role.ADMIN,
        summary="Put and remove entries, all or none. If-Match guards against others' changes.",
        handler=apply,
        reply=ApplyReply,
        body=ApplyRequest,
        changes=True,
        errors=(404, 409, 412),
    ),
    Operation(
        method="GET",
        path="/catalog/{name:path}",
        role=Role.VIEWER,
        summary="One entry.",
        handler=one,
        reply=CatalogEntryReply,
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path="/catalog/{name:path}",
        role=Role.ADMIN,
        summary="Put one entry; its name must be that of the path.",
        handler=put,
        reply=ApplyReply,
        body=EntryRequest,
        changes=True,
        errors=(409, 412),
    ),
    Operation(
        method="DELETE",
        path="/catalog/{name:path}",
        role=Role.ADMIN,
        summary="Remove one entry: withdrawn from routers first, then drained and stopped.",
        handler=delete,
        reply=ApplyReply,
        changes=True,
        errors=(404, 409, 412),
    ),
    Operation(
        method="POST",
        path="/plan",
        role=Role.VIEWER,
        summary="What a change of the catalog would start and stop, without doing it.",
        handler=plan,
        reply=PlanReply,
        body=ApplyRequest,
    ),
    Operation(
        method="GET",
        path="/history",
        role=Role.VIEWER,
        summary="Changes of the catalog, newest first.",
        handler=history,
        reply=HistoryReply,
        query=HistoryQuery,
    ),
    Operation(
        method="POST",
        path="/rollback",
        role=Role.ADMIN,
        summary="Make the API's entries what they were at a version.",
        handler=rollback,
        reply=ApplyReply,
        body=RollbackRequest,
        changes=True,
        errors=(404, 409, 412),
    ),
    Operation(
        method="GET",
        path="/export",
        role=Role.VIEWER,
        summary="Entries as a YAML file that `llmgw ctl apply` takes.",
        handler=export,
        query=ExportQuery,
        media_type="application/yaml",
    ),
)
