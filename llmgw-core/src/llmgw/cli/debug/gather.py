"""What goes into a bundle: each part by itself, so that one that fails hides no other."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from llmgw.cli.debug.redact import redacted, redacted_json
from llmgw.config.display import shown_settings
from llmgw.config.loading import load_server
from llmgw.ctl.client import Client, escape
from llmgw.errors import LlmgwError
from llmgw.plugins import load_registry

_REPLIES = (
    "status",
    "nodes",
    "models",
    "replicas",
    "endpoints",
    "catalog",
    "history",
    "progress",
    "rollouts",
    "events",
    "usage",
)
_LOG_LINES = 2000
_MOST_NODES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of the bundle."""

    name: str
    text: str  #: without secrets
    problem: str = ""  #: why it is empty


def gather(client: Client, config: Path | None) -> Iterator[Part]:
    """Yield the parts: first what needs no server."""
    yield _part("versions.json", lambda: json.dumps(_versions(), indent=2))
    yield _part("config.json", partial(_config, config))
    for name in _REPLIES:
        yield _part(f"{name}.json", partial(client.get, f"/{name}"))
    yield _part("metrics.txt", partial(client.get_root, "/metrics"))
    yield _part("tasks.txt", partial(client.get, "/debug/tasks"))
    yield _part("logs/server.log", partial(client.get, "/logs", lines=_LOG_LINES))
    for node in _nodes(client):
        path = f"/nodes/{escape(node)}"
        yield _part(f"nodes/{node}.json", partial(client.get, path))
        yield _part(f"logs/{node}.log", partial(client.get, f"{path}/logs", lines=_LOG_LINES))


def _part(name: str, make: Callable[[], str]) -> Part:
    try:
        text = make()
    except LlmgwError as error:
        return Part(name=name, text="", problem=redacted(str(error)))
    return Part(name=name, text=redacted_json(text) if name.endswith(".json") else redacted(text))


def _versions() -> dict[str, object]:
    ours = sorted(
        (found.name, found.version)
        for found in metadata.distributions()
        if found.name.lower().startswith("llmgw")
    )
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "distributions": dict(ours),
        "requirements": dict(
            sorted((item.name, item.version) for item in metadata.distributions())
        ),
    }


def _config(file: Path | None) -> str:
    loaded = load_server(
        file, os.environ, {}, installed=load_registry().installed, needs_work=False
    )
    rows = shown_settings(loaded)
    return json.dumps({row.path: {"value": row.value, "origin": row.origin} for row in rows})


def _nodes(client: Client) -> list[str]:
    try:
        listed = json.loads(client.get("/nodes", limit=_MOST_NODES))
    except (LlmgwError, ValueError):
        return []
    return [node["id"] for node in listed["nodes"]]
