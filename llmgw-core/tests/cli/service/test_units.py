"""Units are what systemd takes, and what engines need to outlive their agent."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmgw.cli.service import firewall
from llmgw.cli.service.command import service
from llmgw.cli.service.units import Kind, Unit, render
from llmgw.errors import ConfigError


def unit(kind: Kind, **changes: object) -> Unit:
    values: dict[str, object] = {
        "kind": kind,
        "program": Path("/usr/bin/env"),  # one that is there: systemd-analyze looks
        "config": Path("/etc/llmgw/llmgw.yaml"),
    }
    return Unit(**(values | changes))  # type: ignore[arg-type] # values of the right types


def read(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)  # a key twice is an error
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys are as written
    parser.read_string(text)
    return parser


def test_an_agents_stop_leaves_its_engines_alone() -> None:
    service = read(render(unit(Kind.AGENT)))["Service"]
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    assert service["Delegate"] == "yes"
    assert "PrivateTmp" not in service
    assert "RuntimeDirectory" not in service


@pytest.mark.parametrize("kind", Kind)
def test_a_unit_is_started_for_ever_as_an_unprivileged_user(kind: Kind) -> None:
    made = read(render(unit(kind)))
    assert made["Unit"]["StartLimitIntervalSec"] == "0"
    assert (made["Service"]["Restart"], made["Service"]["RestartSec"]) == ("always", "1")
    assert made["Service"]["StateDirectory"] == "llmgw"
    assert made["Service"]["User"] == "llmgw"
    assert made["Service"]["ExecStart"].endswith(f"{kind} --config /etc/llmgw/llmgw.yaml")


@pytest.mark.parametrize("kind", Kind)
def test_a_unit_is_started_anew_when_it_gives_no_sign_of_life(kind: Kind) -> None:
    service = read(render(unit(kind)))["Service"]
    assert service["Type"] == "notify"  # without which no sign would be heard
    assert int(service["WatchdogSec"]) >= 30  # a busy loop is not a dead one


@pytest.mark.parametrize("kind", Kind)
def test_systemd_finds_nothing_wrong_with_a_unit(kind: Kind, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / f"llmgw-{kind}.service"
    path.write_text(render(unit(kind)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if path.name in line]
    assert said == []


@pytest.mark.parametrize(
    "changes",
    [
        {"config": Path("llmgw.yaml")},
        {"config": Path("/etc/my llmgw/llmgw.yaml")},
        {"program": Path("/opt/%i/llmgw")},
        {"user": "root"},
    ],
    ids=str,
)
def test_what_systemd_would_misread_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        render(unit(Kind.AGENT, **changes))


def test_the_command_writes_the_unit_and_says_what_follows(tmp_path: Path) -> None:
    done = CliRunner().invoke(service, ["install", "agent", "--directory", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "llmgw-agent.service").read_text()
    assert "--config /etc/llmgw/agent.yaml" in text
    assert "systemctl enable --now llmgw-agent" in done.output
    printed = CliRunner().invoke(service, ["install", "agent", "--print"])
    assert printed.stdout == text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(service, ["install", "agent", "--directory", str(tmp_path / "no")])
    assert isinstance(done.exception, ConfigError)
    assert "--print" in str(done.exception)


def rules(*sources: str, weights_port: int = 8083) -> str:
    return firewall.render(sources, ports=(20000, 29999), weights_port=weights_port)


def test_the_firewall_lets_routers_and_nodes_in_and_nobody_else() -> None:
    text = rules("10.0.0.1", "fd00::/64", "10.0.1.0/24")
    lines = [line.strip() for line in text.splitlines()]
    ports = "tcp dport { $engines, $weights }"
    accept = lines.index(f"ip saddr {{ 10.0.0.1/32, 10.0.1.0/24 }} {ports} accept")
    assert f"ip6 saddr {{ fd00::/64 }} {ports} accept" in lines
    assert accept < lines.index(f"{ports} drop")
    assert {"define engines = 20000-29999", "define weights = 8083"} <= set(lines)


@pytest.mark.parametrize("sources", [[], ["router-1"], ["10.0.0.1/24"]])
def test_a_firewall_that_says_nothing_or_too_much_is_refused(sources: list[str]) -> None:
    with pytest.raises(ConfigError):
        rules(*sources)


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="weights-port"):
        rules("10.0.0.1", weights_port=0)


def test_nft_takes_the_firewall(tmp_path: Path) -> None:
    nft = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if nft is None:
        pytest.skip("nft is not installed")
    path = tmp_path / "llmgw.nft"
    path.write_text(rules("10.0.0.1", "fd00::/64"))
    done = subprocess.run([nft, "--check", "-f", str(path)], capture_output=True, text=True)
    if "Operation not permitted" in done.stderr:
        pytest.skip("checking rules needs a privilege that this machine does not give")
    assert done.returncode == 0, done.stderr
