"""What an agent is told, by file, environment and flags."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from llmgw.cli.service.command import service
from llmgw.errors import ConfigError
from llmgw_agent.settings import WeightSettings, load_agent


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("node_id: from-file\npool: from-file\nlabels: {a: file, b: file}\n")
    env = {"LLMGW_AGENT__POOL": "from-env", "LLMGW_AGENT__LABELS": '{"a": "env"}', "OTHER": "x"}
    settings = load_agent(file, env, {"node_id": "from-flag"})
    assert (settings.node_id, settings.pool) == ("from-flag", "from-env")
    assert settings.labels == {"a": "env", "b": "file"}


def test_the_environment_reaches_nested_settings_and_lists() -> None:
    env = {
        "LLMGW_AGENT__WEIGHTS__BUDGET_GIB": "12.5",
        "LLMGW_AGENT__WEIGHTS__HUB_TOKEN": "hf_canary",
        "LLMGW_AGENT__SERVERS": "10.0.0.1:8082, [fd00::1]:8082",
    }
    settings = load_agent(None, env, {})
    assert settings.weights.budget_gib == 12.5
    assert settings.servers == ("10.0.0.1:8082", "[fd00::1]:8082")
    assert "canary" not in repr(settings)


def test_every_problem_is_told_at_once_with_its_place() -> None:
    env = {"LLMGW_AGENT__NODEID": "x", "LLMGW_AGENT__LABELS": "a=b"}
    with pytest.raises(ConfigError) as failed:
        load_agent(
            None,
            env,
            {
                "servers": ["fd00::1:8082"],
                "data_address": "example.org",
                "node_id": "../up",
                "weights_roots": ["relative"],
            },
        )
    text = str(failed.value)
    for part in (
        "LLMGW_AGENT__NODEID",
        "node_id",
        "LLMGW_AGENT__LABELS",
        "JSON",
        "servers",
        "brackets",
        "data_address",
        "weights_roots",
    ):
        assert part in text, text


@pytest.mark.parametrize("address", ["::1", "[::1]", "10.0.0.1"])
def test_an_address_is_kept_without_brackets(address: str) -> None:
    assert load_agent(None, {}, {"data_address": address}).data_address == address.strip("[]")


def test_an_unknown_key_of_the_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('serverz = ["10.0.0.1:8082"]\n')
    with pytest.raises(ConfigError, match="serverz"):
        load_agent(file, {}, {})


def test_a_nodes_firewall_closes_the_port_that_it_gives_weights_at() -> None:
    done = CliRunner().invoke(service, ["firewall", "--allow", "10.0.0.1"])
    assert f"define weights = {WeightSettings().share_port}" in done.output.splitlines()
