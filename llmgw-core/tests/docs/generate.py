"""Write the pages and schemas that are made from the code, or check that they are current.

    python llmgw-core/tests/docs/generate.py [--check]

The metrics are those of a real server with an engine, a node and a few requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from llmgw.config.schema import catalog_schema, server_schema
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ShardId
from llmgw.domain.loads import EngineLoad
from llmgw.domain.replicas import ShardState
from llmgw.plugins import load_registry
from llmgw.router.selection import Outcome
from llmgw.server.router_admin import feed_page
from llmgw.testing import values
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw_agent.settings import AgentSettings

DOCS = Path(__file__).parents[3] / "docs"
MARK = (
    "<!-- Made from the code by llmgw-core/tests/docs/generate.py; changes here are lost. -->\n\n"
)

Schema = Mapping[str, Any]


# -- metrics ---------------------------------------------------------------------------------

STREAM = ['{"choices": [{"delta": {"content": "a"}}]}'] * 2 + [
    '{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}'
]
GROUPS = {
    "Requests": ("Every router, also one alone, and each worker in sum.", ()),
    "Fleet": (
        "Servers with a control plane. Every server shows them; the leader's are the newest.",
        ("control_", "node", "device", "engine_", "replica", "model_"),
    ),
    "The process": ("", ("config_", "feed_")),
}


def metrics_page() -> str:
    """Return the metrics page of a server that has some of everything, and of a router's feed."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_page(Path(folder)))


async def _page(folder: Path) -> str:
    model = values.model("m", values.profile(devices=1)).model_dump(mode="json")
    async with ScriptedEngine(Script.events(*STREAM)) as engine:
        static = {"id": "e", "url": engine.url, "models": ["static"], "health_path": None}
        control = {"settle": 0.1, "dispatcher": "memory"}
        async with running_server(
            folder, models=[model], endpoints=[static], control=control
        ) as server:
            await _some_of_everything(server)
            page = (await server.admin.get("/metrics")).text
    return page + feed_page(False).decode()


async def _some_of_everything(server: RunningServer) -> None:
    device = values.device("gpu-01", 0, utilisation=0.5)
    node = server.nodes.join(values.inventory("gpu-01", devices=(device,)))
    while not node.shards:  # noqa: ASYNC110 # seen from outside, without an event
        await asyncio.sleep(0.02)
    (shard,) = node.shards
    server.nodes.enter(shard, ShardState.STARTING, ShardState.READY)
    load = EngineLoad(running=1, waiting=0, kv_used=0.25)
    server.nodes.beat([(ShardId(shard), load)])
    for name in ("static", "nobody"):
        body: dict[str, object] = {"model": name, "messages": [], "stream": True}
        await server.api.post("/v1/chat/completions", json=body)


def metrics_document() -> str:
    """Return the page about metrics."""
    families = list(text_string_to_metric_families(metrics_page()))
    families.sort(key=lambda family: family.name)
    parts = [
        MARK + "# Metrics\n\n`GET /metrics` on the admin listener, with an admin token of any role;"
        " a router alone has its own. Prometheus' text format. Labels come from the catalog, the"
        " fleet and closed sets, never from a request: a model that nobody knows is `other`."
        " Endpoints that compute half of each request also have a label `role` (prefill · decode)."
        " [Observability](observability.md) has dashboards and alerts.\n"
    ]
    for title, (text, _) in GROUPS.items():
        rows = [
            f"| `{_full_name(family)}` | {family.type} | {_labels(family)} | {_unit(family.name)} |"
            f" {family.documentation} |"
            for family in families
            if _group(family.name) == title
        ]
        head = "| metric | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |"
        parts.append(f"\n## {title}\n\n{text + chr(10) * 2 if text else ''}{head}\n")
        parts.append("\n".join(rows) + "\n")
    return "".join(parts)


def _full_name(family: Any) -> str:
    name: str = family.name
    return f"{name}_total" if family.type == "counter" else name


def _group(name: str) -> str:
    short = name.removeprefix("llmgw_")
    return next(
        (title for title, (_, starts) in GROUPS.items() if short.startswith(starts)), "Requests"
    )


def _unit(name: str) -> str:
    units = {"seconds": "s", "bytes": "bytes", "ratio": "0 to 1"}
    return units.get(name.rpartition("_")[2], "")


def _labels(family: Any) -> str:
    seen: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            seen.setdefault(label, []).append(value)
    seen.pop("le", None)
    if "outcome" in seen:
        seen["outcome"] = list(Outcome)
    closed = {"state", "use", "outcome", "gen_ai_token_type"}
    return ", ".join(
        f"`{label}` ({' · '.join(dict.fromkeys(found))})" if label in closed else f"`{label}`"
        for label, found in seen.items()
    )


# -- settings and catalog --------------------------------------------------------------------


def settings_document() -> str:
    """Return the reference of a server's and an agent's settings."""
    server = server_schema(load_registry().sections)
    return (
        MARK
        + "# Settings\n\nAll settings with their defaults. [Configuration](configuration.md) says how"
        " files, environment and flags come together.\n\n## Server and router\n\n"
        + _tables(server, skip=("models",))
        + "\n`models` are catalog entries: see the [catalog](reference-catalog.md)."
        "\n\n## Agent\n\nIn a file, as"
        " `LLMGW_AGENT__…`, or as flags.\n\n"
        + _tables(AgentSettings.model_json_schema(), skip=("plugins",))
    )


def catalog_document() -> str:
    """Return the reference of catalog entries."""
    return (
        MARK
        + "# Catalog reference\n\nOne entry is one model: what clients ask for, and the ways to run it."
        " Entries stand under `models:` of the server's file, in files of `catalog_dir`, or are given to"
        " `llmgw ctl apply`. `llmgw config schema --catalog` prints the JSON Schema.\n\n"
        + _tables(Model.model_json_schema())
    )


def _tables(schema: Schema, *, skip: tuple[str, ...] = ()) -> str:
    """Return a table of the schema's own settings, and one of each section below it."""
    tables: list[str] = []
    for title, text, rows in _sections(schema, schema, "", skip):
        lines = [f"### `{title}`\n"] if title else []
        lines += [f"{text}\n"] if text and title else []
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _sections(
    root: Schema, schema: Schema, path: str, skip: tuple[str, ...]
) -> Iterator[tuple[str, str, list[str]]]:
    rows: list[str] = []
    below: list[tuple[str, Schema]] = []
    for name, node in schema["properties"].items():
        if name in skip:
            continue
        inner, mark = _inner(root, node)
        if inner is not None:
            below.append((f"{path}{name}{mark}", inner))
        if inner is None or mark or "anyOf" in node:
            required = name in schema.get("required", ())
            default = "required" if required else _default(node)
            rows.append(f"| `{name}` | {_type(node)} | {default} | {_text(node)} |")
    if rows:
        yield path.rstrip("."), schema.get("description", ""), rows
    for title, inner in below:
        yield from _sections(root, inner, f"{title}.", ())


def _inner(root: Schema, node: Schema) -> tuple[Schema | None, str]:
    """Return the section that a key holds, and how its entries are marked."""
    alone = [(item, "") for item in (node, *node.get("anyOf", ()))]
    for place, mark in (*alone, (node.get("items", {}), "[]"), (_more(node), ".NAME")):
        if "properties" in place:
            return place, mark
        if "$ref" in place:
            named = root["$defs"][place["$ref"].rpartition("/")[2]]
            if "properties" in named:  # not one of a few words
                return named, mark
    return None, ""


def _more(node: Schema) -> Schema:
    more = node.get("additionalProperties")
    return more if isinstance(more, Mapping) else {}


def _type(node: Schema) -> str:
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if "anyOf" in node:
        kinds = [item for item in node["anyOf"] if item.get("type") != "null"]
        if any("pattern" in item for item in kinds):
            return "duration"
        return _type(kinds[0])
    if "pattern" in node:
        return "duration"
    said: str = node.get("type", "object" if "$ref" in node else "any")
    kind = {"string": "text", "object": "mapping", "array": "list"}.get(said, said)
    if node.get("format") in ("path", "file-path"):
        return "path"
    if "prefixItems" in node:
        return " and ".join(item["type"] for item in node["prefixItems"])
    bounds = [
        f"{word} {node[key]:g}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
        )
        if key in node
    ]
    return " ".join([kind, *bounds])


def _default(node: Schema) -> str:
    value = node.get("default")
    if value in (None, ""):
        return ""
    if _type(node) == "duration":
        return f"`{value:g}s`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _text(node: Schema) -> str:
    text = " ".join(node.get("description", "").split())
    return text.replace("|", "\\|").replace("None:", "not given:")


# -- all of it -------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Return the text of every file that is made from the code."""
    schemas = {"server": server_schema(load_registry().sections), "catalog": catalog_schema()}
    return {
        DOCS / "metrics.md": metrics_document(),
        DOCS / "reference-settings.md": settings_document(),
        DOCS / "reference-catalog.md": catalog_document(),
        **{
            DOCS / "schema" / f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False)
            + "\n"
            for name, schema in schemas.items()
        },
    }


def main() -> int:
    made = pages()
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return 0
    stale = [
        path.name for path, text in made.items() if not path.exists() or path.read_text() != text
    ]
    if stale:
        sys.stderr.write(f"{', '.join(stale)}: older than the code; run python {__file__}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
