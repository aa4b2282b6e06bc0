"""The worked policy and sink are built from the guide's text alone, and do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "plugins-worked.md").read_text()
BLOCKS = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))
FLEET = "nodes:\n  - {name: red, labels: {team: red}}\n  - {name: open}\n"
CATALOG = (
    "models:\n"
    "  - {name: red/chat, profiles: [{engine: llamacpp, weights: 'path:/models/a.gguf'}]}\n"
    "  - {name: blue/chat, profiles: [{engine: llamacpp, weights: 'path:/models/a.gguf'}]}\n"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package, installed by pip into a folder."""
    home = tmp_path_factory.mktemp("acme")
    source, site = home / "acme-llmgw", home / "site"
    source.mkdir()
    for name, code in BLOCKS.items():
        (source / name).write_text(code)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, *offline, str(source)], check=True)
    return {**os.environ, "PYTHONPATH": f"{site}", "SOURCE": str(source)}


def run(env: dict[str, str], *words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(60)
def test_both_plugins_load(installed: dict[str, str]) -> None:
    listed = run(installed, "llmgw", "plugins")
    assert re.search(r"acme-llmgw +1\.0 +teams +ok +policy: teams", listed)
    assert re.search(r"acme-llmgw +1\.0 +map +ok", listed)


@pytest.mark.timeout(60)
def test_its_own_tests_pass(installed: dict[str, str]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "anyio_mode=auto"]
    file = Path(installed["SOURCE"]) / "test_acme.py"
    run(installed, "pytest", *options, f"--rootdir={file.parent}", str(file), cwd=file.parent)


@pytest.mark.timeout(60)
def test_a_rehearsal_obeys_the_policy_and_shows_its_veto(
    installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    words = ["--fleet", "fleet.yaml", "--catalog", "catalog.yaml", "--policy", "teams"]
    said = run(installed, "llmgw", "simulate", *words, cwd=tmp_path)
    assert "red/chat/default on red" in said
    assert "other_team: open belongs to no team" in said
