"""`llmgw agent`: what its flags mean, and its errors in one line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmgw.domain.ids import DeviceId, NodeId, ReplicaId, ShardId
from llmgw.domain.nodes import Device, DeviceHealth, NodeInventory
from llmgw.domain.replicas import Failure, FailureCause, Shard, ShardState
from llmgw.errors import ConfigError
from llmgw_agent.command import agent
from llmgw_agent.node.status import AgentStatus, ServerLink, ShardLine
from llmgw_agent.render import status_text

NOW = 1_800_000_000.0
STATUS = AgentStatus(
    written_at=NOW - 3,
    pid=4711,
    epoch=7,
    cluster_id="c1",
    running=True,
    inventory=NodeInventory(
        node=NodeId("gpu-01"),
        agent_uid="uid",
        boot_id="boot",
        machine_id="machine",
        agent_version="0.1.0",
        hostname="gpu-01",
        data_address="10.0.0.5",
        devices=(
            Device(
                id=DeviceId("GPU-1"),
                index=0,
                kind="H100\x1b[31m",
                vendor="nvidia",
                memory_mib=None,
                health=DeviceHealth.FAILED,
                health_reason="Xid 79",
            ),
        ),
    ),
    servers=(ServerLink(server="[::1]:8082", state="connected", since=NOW - 65),),
    shards=(
        ShardLine(
            shard=Shard(
                id=ShardId("m-1-1.0"),
                replica=ReplicaId("m-1-1"),
                node=NodeId("gpu-01"),
                rank=0,
                state=ShardState.BACKOFF,
                restarts=2,
                failure=Failure(cause=FailureCause.PORT_IN_USE, message="port 20000 is taken"),
            ),
            model="m",
            engine="llamacpp",
            url=None,
        ),
    ),
)


def test_status_is_aligned_and_prints_blanks_as_dashes() -> None:
    assert status_text(STATUS, NOW).splitlines() == [
        "NODE    AGENT    PID   POOL     CLUSTER  EPOCH  WRITTEN",
        "gpu-01  running  4711  default  c1       7      3s ago",
        "",
        "SERVER      STATE      SINCE     REASON",
        "[::1]:8082  connected  1m5s ago  -",
        "",
        "DEVICE  KIND       MEMORY  USED  HEALTH",
        "GPU-1   H100 [31m  -       -     failed Xid 79",
        "",
        "SHARD    MODEL  ENGINE    STATE    PID  RESTARTS  URL  REASON",
        "m-1-1.0  m      llamacpp  backoff  -    2         -    port 20000 is taken",
    ]


def test_every_bad_flag_is_reported_at_once() -> None:
    result = CliRunner().invoke(
        agent,
        ["--server", "nonsense", "--node-id", "..", "--data-address", "x"],
        catch_exceptions=True,
    )
    assert isinstance(result.exception, ConfigError)
    said = str(result.exception)
    assert "3 problems" in said
    for path in ("servers[0]", "node_id", "data_address"):
        assert path in said


@pytest.mark.parametrize("flag", ["--label", "--fabric"])
def test_a_label_without_a_value_shows_the_form(flag: str) -> None:
    result = CliRunner().invoke(agent, [flag, "rack"])
    assert result.exit_code == 2
    assert f"{flag} must be KEY=VALUE, got 'rack'" in result.output


def test_status_of_a_folder_without_an_agent_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(agent, ["--state-dir", str(tmp_path), "status"])
    assert isinstance(result.exception, ConfigError)
    assert "no agent has run with this state folder" in str(result.exception)


def test_a_refused_join_is_one_line_and_no_tree_of_tasks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmgw", "agent", "--state-dir", str(tmp_path / "state")]
    done = subprocess.run(
        [*command, "--server", "127.0.0.1:1", "--node-id", "n", "--join", "no-token"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("llmgw:")]
    assert "not a join token" in told
    assert "no-token" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.e2e
@pytest.mark.timeout(60)
def test_the_node_shows_itself_with_no_server_at_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llmgw", "agent", "--state-dir", str(tmp_path / "state")]
    env = {**os.environ, "HOME": str(tmp_path), "GRPC_VERBOSITY": "NONE"}
    with subprocess.Popen(
        [*command, "--server", "127.0.0.1:1", "--node-id", "alone"],
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as running:
        try:
            assert running.stderr is not None
            for line in running.stderr:
                if "agent runs" in line:
                    break
            shown = subprocess.run(
                [*command, "status", "--json"], check=True, capture_output=True, env=env
            )
            status = json.loads(shown.stdout)
            assert status["running"] is True
            assert status["inventory"]["node"] == "alone"
            assert status["servers"][0]["server"] == "127.0.0.1:1"
        finally:
            running.terminate()
            running.communicate(timeout=20)
    stopped = subprocess.run([*command, "status"], check=True, capture_output=True, env=env)
    assert b"stopped" in stopped.stdout
