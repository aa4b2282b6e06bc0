"""`llmgw simulate` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from llmgw.contracts.engine import EngineTraits
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.snapshot import Engine
from llmgw.errors import ConfigError
from llmgw.simulate.command import report, simulate
from llmgw.simulate.fleetfile import read_catalog, read_fleet
from llmgw.simulate.rehearsal import rehearse

FLEET = """
nodes:
  - {name: gpu, count: 2, devices: {count: 2, kind: H100, memory_gib: 80}}
  - {name: cpu, ram_gib: 64}
"""
CATALOG = """
models:
  - name: large
    profiles: [{engine: fake, weights: "path:/m", devices: {count: 2, memory_gib: 40}}]
  - name: huge
    profiles: [{engine: fake, weights: "path:/m", devices: {count: 4, memory_gib: 40}}]
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_it_says_what_runs_where_what_does_not_and_what_a_loss_would_do(tmp_path: Path) -> None:
    nodes = read_fleet(write(tmp_path, "fleet.yaml", FLEET), ["fake"])
    assert [node.node for node in nodes] == ["gpu-1", "gpu-2", "cpu"]
    models = read_catalog(write(tmp_path, "catalog.yaml", CATALOG))
    engines = {"fake": Engine(traits=EngineTraits())}
    lines = report(rehearse(nodes, models, policy=Pack(), engines=engines))
    assert lines[0] == "1 replica would run"
    assert lines[1].startswith("  large/default on gpu-1 (2 devices): replicas.min is 1; pack:")
    assert "2 devices would stay free" in lines
    assert any("too_few_devices: needs 4 devices, gpu-1 has 2" in line for line in lines)
    assert lines[-1] == "losing gpu-1: 1 replica would move, 0 models would lack one"


def test_a_wrong_fleet_file_is_refused_with_the_place_of_each_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, "fleet.yaml", "nodes: [{name: a, devices: {count: -1, kinds: x}}]\n")
    with pytest.raises(ConfigError) as caught:
        read_fleet(path, [])
    assert {problem.path for problem in caught.value.problems} == {
        "nodes[0].devices.count",
        "nodes[0].devices.kinds",
    }


def test_an_unknown_policy_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    fleet, catalog = write(tmp_path, "f.yaml", FLEET), write(tmp_path, "c.yaml", CATALOG)
    result = CliRunner().invoke(
        simulate, ["--fleet", str(fleet), "--catalog", str(catalog), "--policy", "nope"]
    )
    assert isinstance(result.exception, ConfigError)
    assert "fabric, pack, spread" in str(result.exception)
