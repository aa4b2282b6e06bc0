"""Carry out docs/airgap.md: gather wheels with internet, then install and serve without.

Run by `nox -s wheels`. As root, what the page says to do on the other side runs in a network
namespace that has loopback alone; else nothing but pip is kept from the internet.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
_LIMIT_S = 600.0


def main() -> None:
    page = (ROOT / "docs" / "airgap.md").read_text()
    commands = re.findall(r"^\$ (python3 .*|/opt/llmgw/.*)$", page, re.MULTILINE)
    gathering = [line for line in commands if " wheel " in line or " download " in line]
    installing = [line for line in commands if line not in gathering]
    if len(gathering) != 2 or len(installing) != 2:
        sys.exit(f"docs/airgap.md has other commands than this script knows: {commands}")
    with tempfile.TemporaryDirectory() as folder:
        for line in gathering:
            run(here(line, folder))
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{folder}/wheels"}
        for line in installing:
            run(cut_off(here(line, folder)), offline)
        question = f"{folder}/llmgw/bin/llmgw up --once --state-dir {folder}/state"
        ports = [f"--{name}=127.0.0.1:{free_port()}" for name in ("listen", "admin-listen")]
        run(cut_off([*shlex.split(question), *ports]), offline)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def here(line: str, folder: str) -> list[str]:
    """Return a command of the page, with this machine's Python and places below `folder`."""
    line = re.sub(r"(?<= )wheels(?= )", f"{folder}/wheels", line)
    words = shlex.split(line.replace("/opt/llmgw", f"{folder}/llmgw"))
    return [sys.executable if word == "python3" else word for word in words]


def cut_off(words: list[str]) -> list[str]:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        return words
    return ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {shlex.join(words)}"]


def run(words: list[str], env: dict[str, str] | None = None) -> None:
    kept = {name: value for name, value in os.environ.items() if not env or "PIP" not in name}
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**kept, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
