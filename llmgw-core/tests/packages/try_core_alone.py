"""Run by `nox -s wheels` with the Python of an environment that has llmgw-core and nothing else.

Router-only mode must serve, and commands of packages that are absent must say which to install.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from llmgw.testing.site import free_port

_LIMIT_S = 30.0


def main() -> None:
    for command in ("agent", "up"):
        done = llmgw(command)
        told = done.stdout + done.stderr
        if done.returncode == 0 or "pip install" not in told or "llmgw-agent" not in told:
            sys.exit(f"`llmgw {command}` does not say what to install: {told}")
    engine, api, admin = free_port(), free_port(), free_port()
    with contextlib.ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory())
        start(
            running, "-m", "llmgw.testing.fake_engine", "--port", str(engine), "--served-name", "m"
        )
        start(
            running,
            *("-m", "llmgw", "server", "--state-dir", str(Path(folder) / "state")),
            *("--listen", f"127.0.0.1:{api}", "--admin-listen", f"127.0.0.1:{admin}"),
            *("--endpoint", f"e1=http://127.0.0.1:{engine}=m,alias"),
        )
        for name in ("m", "alias"):
            answer = ask(f"http://127.0.0.1:{api}/v1/chat/completions", name)
            if answer["model"] != name:
                sys.exit(f"asked {name}, answered {answer}")


def llmgw(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmgw", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)


def start(running: contextlib.ExitStack, *arguments: str) -> None:
    process = subprocess.Popen([sys.executable, *arguments])
    running.callback(process.wait, _LIMIT_S)
    running.callback(process.terminate)


def ask(url: str, model: str) -> dict[str, object]:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    end = time.monotonic() + _LIMIT_S
    while True:
        with contextlib.suppress(httpx.TransportError):  # not up yet
            reply = httpx.post(url, json=body, trust_env=False, timeout=_LIMIT_S)
            answer: dict[str, object] = reply.raise_for_status().json()
            return answer
        if time.monotonic() > end:
            sys.exit(f"{url} does not answer")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
