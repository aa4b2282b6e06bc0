"""The bundle: whole, and without the canaries that are everywhere in the cluster."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from llmgw.cli.debug.redact import redacted, redacted_json
from llmgw.cli.main import run
from llmgw.testing.clock import FastClock
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.values import inventory

CANARY = "canaryBird4711"
MODEL = {
    "name": "tiny",
    "profiles": [
        {
            "engine": "fake",
            "weights": "path:/w",
            "devices": {"count": 1, "memory_gib": 10},
            "env": {"FAKE_TOKEN": CANARY},
        }
    ],
}
CONFIG = f"""
endpoints:
  - {{id: far, url: "http://127.0.0.1:9", models: [far], headers: {{x-key: {CANARY}}}}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            running_server(tmp_path / "llmgw", models=[MODEL], clock=FastClock())
        ) as running,
    ):
        portal.call(lambda: running.nodes.join(inventory("gpu-01", devices=1)))
        yield running


@pytest.fixture
def bundle(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The files of a bundle by name."""
    (tmp_path / "llmgw.yaml").write_text(CONFIG)
    monkeypatch.setenv("LLMGW_SERVER", f"http://{server.serving.admin}")
    monkeypatch.setenv("LLMGW_TOKEN_FILE", str(server.state_dir / "admin.token"))
    output = tmp_path / "bundle.tar.gz"
    config = str(tmp_path / "llmgw.yaml")
    assert run(["debug", "bundle", "--config", config, "-o", str(output)]) == 0
    assert output.stat().st_mode & 0o777 == 0o600
    with tarfile.open(fileobj=io.BytesIO(output.read_bytes())) as archive:
        return {
            name.partition("/")[2]: (archive.extractfile(name) or io.BytesIO()).read().decode()
            for name in archive.getnames()
        }


def test_a_bundle_has_all_parts_and_no_secret(
    bundle: dict[str, str], server: RunningServer
) -> None:
    """C061"""
    token = (server.state_dir / "admin.token").read_text().strip()
    for name, text in bundle.items():
        assert CANARY not in text, name
        assert token not in text, name
    assert json.loads(bundle["status.json"])["server"]
    assert json.loads(bundle["nodes.json"])["nodes"][0]["id"] == "gpu-01"
    assert "llmgw_queued_requests" in bundle["metrics.txt"]
    assert "x-key" in bundle["config.json"]
    assert "FAKE_TOKEN" in bundle["catalog.json"]
    assert "llmgw-core" in json.loads(bundle["versions.json"])["distributions"]
    # Nodes in memory have no logs: the rest is there, and the reason is told.
    assert "logs/gpu-01.log" in bundle["problems.txt"]


def test_a_server_that_is_away_leaves_the_rest_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["debug", "bundle", "--server", "http://127.0.0.1:9", "-o", "b.tar.gz"]) == 0
    assert "cannot be reached" in capsys.readouterr().err
    with tarfile.open("b.tar.gz") as archive:
        assert any(name.endswith("versions.json") for name in archive.getnames())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"key llmgw_0123456789ab_{CANARY} used", "key llmgw_0123456789ab_*** used"),
        (f"token=llmgwadmin_0123456789ab_{CANARY}", "token=***"),
        (f"join llmgw1.id.{CANARY}.pin", "join llmgw1.id.***"),
        (f"Authorization: Bearer {CANARY}", "Authorization: ***"),
        (f"sent bearer {CANARY}", "sent bearer ***"),
        (f"postgresql://gw:{CANARY}@db/x", "postgresql://***@db/x"),
        (f"--api-key={CANARY} --port 1", "--api-key=*** --port 1"),
        (f"HF_TOKEN={CANARY}", "HF_TOKEN=***"),
        (f"hf_{CANARY}", "hf_***"),
        (f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----", "***"),
        ('llmgw_requests_total{model="a"} 5', 'llmgw_requests_total{model="a"} 5'),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_texts(text: str, kept: str) -> None:
    assert CANARY not in redacted(text)
    assert redacted(text) == kept


def test_values_are_masked_by_their_names_in_documents() -> None:
    shown = redacted_json(json.dumps({"env": {"X": CANARY}, "api_key": CANARY, "n": [1, "tiny"]}))
    assert json.loads(shown) == {"env": {"X": "***"}, "api_key": "***", "n": [1, "tiny"]}
