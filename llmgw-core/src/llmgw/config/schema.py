"""JSON Schema of the configuration and of a catalog file, for editors."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter

from llmgw.config.section import Section
from llmgw.config.server import ServerSettings
from llmgw.domain.catalog import CatalogValue, Model

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class CatalogFile(CatalogValue):
    """A file of `catalog_dir` with several entries."""

    models: tuple[Model, ...]


def server_schema(sections: Mapping[str, type[Section]]) -> dict[str, object]:
    """Return the schema of a server's file. sections: plugins' settings by name."""
    schema = ServerSettings.model_json_schema()
    plugins: dict[str, object] = {
        "type": "object",
        "additionalProperties": False,
        "description": "Sections of installed plugins by name.",
        "properties": {},
    }
    definitions = schema.setdefault("$defs", {})
    for name, section in sorted(sections.items()):
        inner = section.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
        for key, definition in inner.pop("$defs", {}).items():
            definitions[f"{name}.{key}"] = definition
        assert isinstance(plugins["properties"], dict)  # noqa: S101 # made four lines above
        plugins["properties"][name] = inner
    schema["properties"]["plugins"] = plugins
    return {"$schema": _DIALECT, **schema, "title": "llmgw server"}


def catalog_schema() -> dict[str, object]:
    """Return the schema of a file in `catalog_dir`: `models:`, or one entry by itself."""
    schema = TypeAdapter(CatalogFile | Model).json_schema()
    return {"$schema": _DIALECT, **schema, "title": "llmgw catalog"}
