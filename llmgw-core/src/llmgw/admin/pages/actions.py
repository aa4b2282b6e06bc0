"""What the page's forms do: each is one operation of the API, with a body made of the form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmgw.admin.api import access, catalog, progress, work
from llmgw.admin.operations import Operation

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One form."""

    path: str  #: below `/admin`
    operation: Operation
    body: Callable[[Form], dict[str, Any] | None]
    back: str  #: page that is shown afterwards, with the path's own parts filled in
    is_long: bool = False  #: shown at once, while it goes on: it may take minutes


def _find(operations: tuple[Operation, ...], method: str, path: str) -> Operation:
    return next(item for item in operations if (item.method, item.path) == (method, path))


def _reason(form: Form) -> dict[str, Any]:
    return {"reason": form.get("reason", "")}


def _nothing(_: Form) -> None:
    return None


def _key(form: Form) -> dict[str, Any]:
    models = [name.strip() for name in form.get("models", "").split(",") if name.strip()]
    per_minute = form.get("requests_per_minute", "")
    limits = {"requests_per_minute": int(per_minute)} if per_minute.isdecimal() else {}
    return {"name": form.get("name", ""), "models": models or None, "limits": limits}


def _engine(form: Form) -> dict[str, Any]:
    return {name: form.get(name, "").strip() for name in ("engine", "version")}


def _weights(form: Form) -> dict[str, Any]:
    return {"ref": form.get("ref", "").strip()}


def _version(form: Form) -> dict[str, Any]:
    return {"version": form.get("version", "")}


_NODE = "/nodes/{node}"
ACTIONS = (
    Action(
        path=_NODE + "/cordon",
        operation=_find(work.OPERATIONS, "POST", _NODE + "/cordon"),
        body=_reason,
        back=_NODE,
    ),
    Action(
        path=_NODE + "/uncordon",
        operation=_find(work.OPERATIONS, "POST", _NODE + "/uncordon"),
        body=_nothing,
        back=_NODE,
    ),
    Action(
        path=_NODE + "/drain",
        operation=_find(work.OPERATIONS, "POST", _NODE + "/drain"),
        body=_reason,
        back=_NODE,
    ),
    Action(
        path=_NODE + "/weights",
        operation=_find(work.OPERATIONS, "POST", _NODE + "/weights"),
        body=_weights,
        back="/progress",
        is_long=True,
    ),
    Action(
        path=_NODE + "/engines",
        operation=_find(work.OPERATIONS, "POST", _NODE + "/engines"),
        body=_engine,
        back="/progress",
        is_long=True,
    ),
    Action(
        path="/models/{name:path}/retry",
        operation=_find(progress.OPERATIONS, "POST", "/models/{name:path}/retry"),
        body=_nothing,
        back="/models/{name}",
    ),
    Action(
        path="/rollback",
        operation=_find(catalog.OPERATIONS, "POST", "/rollback"),
        body=_version,
        back="/rollouts",
    ),
    Action(
        path="/keys",
        operation=_find(access.OPERATIONS, "POST", "/keys"),
        body=_key,
        back="/keys",
    ),
    Action(
        path="/keys/{id}/revoke",
        operation=_find(access.OPERATIONS, "DELETE", "/keys/{id}"),
        body=_nothing,
        back="/keys",
    ),
)
