"""Every block of YAML, TOML, JSON, INI and Python in the documentation is what it seems to be."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.cli.main import llmgw
from llmgw.config.loading import load_server
from llmgw.config.server import ServerSettings
from llmgw.domain.catalog import Model
from llmgw.plugins import load_registry
from llmgw.simulate.fleetfile import read_fleet
from llmgw_agent.settings import AgentSettings, load_agent

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("llmgw-*/README.md")])
BLOCKS = [
    pytest.param(language, text, id=f"{page.relative_to(ROOT)}-{number}-{language}")
    for page in PAGES
    for number, (language, text) in enumerate(
        re.findall(r"^ *```(\w+)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]
#: Files of other programs: only their syntax is ours to check.
FOREIGN = ("# prometheus.yml",)


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_is_what_it_seems_to_be(language: str, text: str, tmp_path: Path) -> None:
    match language:
        case "yaml":
            _check_yaml(text, tmp_path)
        case "toml":
            tomllib.loads(text)
        case "json":
            json.loads(text)
        case "ini":
            _check_unit(text)
        case "python":
            compile(text, "a block", "exec")
        case _:
            assert language == "console", f"nothing checks {language}"


def _check_yaml(text: str, folder: Path) -> None:
    data = yaml.safe_load(text)
    if text.startswith(FOREIGN) or data is None:
        return
    assert isinstance(data, Mapping)
    if data.keys() <= {"profiles"}:
        Model.model_validate({"name": "m", **data})
    elif "profiles" in data:
        Model.model_validate(data)
    elif "nodes" in data:
        assert read_fleet(_written(folder, text), ["llamacpp"])
    elif "servers" in data:
        _written(folder, text)
        load_agent(folder / "block.yaml", {}, {})
    else:
        _check_settings(data, folder)


def _check_settings(data: Mapping[str, Any], folder: Path) -> None:
    """Load a server's file as the server would, but for plugins that only the page has."""
    assert data.keys() <= ServerSettings.model_fields.keys() | AgentSettings.model_fields.keys()
    known = load_registry().installed
    plugins = data.get("plugins", {})
    ours = {name: value for name, value in plugins.items() if name in known.sections}
    shown = {**data, "plugins": ours}
    if shown.get("control", {}).get("placement_policy") in ("teams", "coolest-rack"):
        shown["control"] = {**shown["control"], "placement_policy": "pack"}
    if shown.get("tls"):
        certificate, key = folder / "tls.crt", folder / "tls.key"
        certificate.touch()
        key.touch()
        shown["tls"] = {"certificate": str(certificate), "key": str(key)}
    if "catalog_dir" in shown:
        shown["catalog_dir"] = str(folder / "catalog")
        (folder / "catalog").mkdir()
    _written(folder, yaml.safe_dump(shown))
    load_server(folder / "block.yaml", {}, {}, installed=known, needs_work=False)


def _written(folder: Path, text: str) -> Path:
    path = folder / "block.yaml"
    path.write_text(text)
    return path


def _check_unit(text: str) -> None:
    """A unit of systemd that starts a command of ours."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign] # as typeshed has it
    unit.read_string(text)
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, name, *words = unit["Service"]["ExecStart"].split()
    assert program == "/opt/llmgw/bin/llmgw"
    command = llmgw.get_command(None, name)  # type: ignore[arg-type] # it does not look at it
    assert command is not None
    command.make_context(name, words)
