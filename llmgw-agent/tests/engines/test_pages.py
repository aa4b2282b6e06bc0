"""What the pages of the engines tell to type, as it stands, in a clone of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.testing.pages import commands_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
_LIMIT_S = 1100.0


def environment_of(variable: str) -> Path | None:
    """The virtual environment that the site has already, named by its interpreter."""
    given = os.environ.get(variable)
    return Path(given).parent.parent if given else None


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As far as the commands look at it; what they make there is no part of ours."""
    made = tmp_path / "clone"
    made.mkdir()
    for name in ("llmgw-engine-vllm", "llmgw-engine-sglang"):
        shutil.copytree(ROOT / name, made / name)
    shutil.copy2(ROOT / "pyproject.toml", made)
    return made


def type_all(page: str, clone: Path, *, without: str = " is left out") -> str:
    """Type the commands of a page one after the other. without: leave out those with this in it."""
    said = ""
    commands = list(commands_of((ROOT / "docs" / "engines" / page).read_text()))
    assert commands
    for command in commands:
        if without in command:
            continue
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=clone,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("LLMGW_")},
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        said += done.stdout
        assert done.returncode == 0, f"{command}\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return said


def test_the_page_of_vllm_installs_and_tries_it(clone: Path) -> None:
    """Some gigabytes, unless the site has the engine: then they are not installed a second time."""
    if (here := environment_of("LLMGW_VLLM_PYTHON")) is None:
        said = type_all("vllm.md", clone)
    else:
        (clone / "vllm").symlink_to(here)
        said = type_all("vllm.md", clone, without="python3.11 -m venv")
    assert " passed" in said
    assert "skipped" not in said


def test_the_page_of_sglang_tries_it(clone: Path) -> None:
    if (here := environment_of("LLMGW_SGLANG_PYTHON")) is None:
        pytest.skip("LLMGW_SGLANG_PYTHON unset: there is no build for CPUs")
    (clone / "sglang").symlink_to(here)
    said = type_all("sglang.md", clone)
    assert " passed" in said
    assert "skipped" not in said
