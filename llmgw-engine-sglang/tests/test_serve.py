"""The entry point that keeps SGLang's key out of sight, with a package that stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from llmgw_engine_sglang import argv

KEY = "canary-7c1e"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An interpreter whose `sglang` prints its arguments and logs them, as the real one does."""
    packages = tmp_path / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    program = packages / "sglang" / "cli" / "main.py"
    program.parent.mkdir(parents=True)
    program.write_text(
        textwrap.dedent(
            """
            import logging, sys

            def main():
                print("argv:", *sys.argv[1:])
                logging.basicConfig(level="INFO", stream=sys.stdout, format="log: %(message)s")
                logging.info(f"server_args={sys.argv[1:]}")
                logging.info("once %s and %d", sys.argv[-1], 7)
                print("cmdline:", open("/proc/self/cmdline").read().replace(chr(0), " "))
            """
        )
    )
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    return python


def test_the_key_is_given_to_the_engine_but_seen_nowhere(environment: Path) -> None:
    result = subprocess.run(
        [str(environment), "-I", argv.SERVE, "serve", "--port", "1"],
        env={**os.environ, "LLMGW_SGLANG_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    given, logged, formatted, cmdline = result.stdout.splitlines()
    assert given == f"argv: serve --port 1 --api-key {KEY}"
    assert logged == "log: server_args=['serve', '--port', '1', '--api-key', '***']"
    assert formatted == "log: once *** and 7"
    assert KEY not in cmdline


def test_a_missing_engine_is_named(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    command = [str(python), "-I", argv.SERVE, "serve"]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 3
    assert "cannot import sglang" in result.stderr
