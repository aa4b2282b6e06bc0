"""What `llmgw config show` and `llmgw config schema` are made of."""

from __future__ import annotations

import json
from pathlib import Path

from llmgw.config.display import shown_settings
from llmgw.config.loading import load_server
from llmgw.config.schema import catalog_schema, server_schema
from llmgw.config.section import Section

FILES = Path(__file__).parent / "files"


class ConsulSection(Section):
    """Settings that a plugin could have."""

    url: str | None = None
    """Where it answers."""


def test_each_value_is_shown_with_its_origin() -> None:
    loaded = load_server(
        FILES / "good.yaml", {"HOME": "/h", "LLMGW_WORKERS": "2"}, {"admin_listen": "127.0.0.1:0"}
    )
    rows = {row.path: row for row in shown_settings(loaded)}
    assert (rows["listen"].value, rows["listen"].origin) == (
        "127.0.0.1:8080",
        f"file {FILES / 'good.yaml'}:1",
    )
    assert rows["workers"].origin == "environment LLMGW_WORKERS"
    assert rows["admin_listen"].origin == "flag --admin-listen"
    assert (rows["control.interval"].value, rows["control.interval"].origin) == (5.0, "default")
    assert rows["models[0].profiles[0].weights"].origin == f"file {FILES / 'good.yaml'}:15"
    assert rows["models[0].profiles[0].pool"].origin == "default"
    assert rows["endpoints"].value == []
    json.dumps([row.value for row in rows.values()])


def test_no_secret_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "llmgw.yaml"
    file.write_text(
        "cluster_secret: marker-1\n"
        "endpoints:\n"
        "  - {id: e, url: 'http://x', models: [m], headers: {X-Key: marker-2}}\n"
        "models:\n"
        "  - name: a\n"
        "    profiles:\n"
        "      - {engine: toy, weights: 'path:/x', env: {TOKEN: marker-3},"
        " options: {api_key: marker-4}}\n"
    )
    rows = shown_settings(load_server(file, {"HOME": "/h"}, {}))
    assert "marker" not in repr(rows)
    assert {row.value for row in rows if row.path.endswith("X-Key")} == {"***"}


def test_the_schema_describes_every_setting_and_plugins_sections() -> None:
    schema = json.loads(json.dumps(server_schema({"consul": ConsulSection})))
    properties = schema["properties"]
    assert {"listen", "models", "endpoints", "router", "control"} <= set(properties)
    assert properties["plugins"]["properties"]["consul"]["properties"]["url"]
    assert "description" in properties["listen"]
    text = json.dumps(schema)
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text


def test_the_schema_of_a_catalog_file_takes_one_entry_or_a_list() -> None:
    schema = json.loads(json.dumps(catalog_schema()))
    assert [option["$ref"] for option in schema["anyOf"]] == [
        "#/$defs/CatalogFile",
        "#/$defs/Model",
    ]
