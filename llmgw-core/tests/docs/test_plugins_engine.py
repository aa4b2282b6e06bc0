"""The fourth engine of the guide is built from its text: it keeps the contract, and it runs.

`nox -s wheels` does the same as a reader would, for all of the guide, in an environment of its own.
"""

from __future__ import annotations

import os
import re
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.contracts.engine import EngineHome
from llmgw.testing.engine import CREDENTIAL, EngineContract, assignments, profile

_TEXT = (Path(__file__).parents[3] / "docs" / "plugins-engine.md").read_text()
_BLOCKS = dict(re.findall(r"```python\n# llmgw-engine-acme/(\w+\.py)\n(.*?)```", _TEXT, re.DOTALL))


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the guide's test module defines, imported as its reader would have it."""
    folder = tmp_path_factory.mktemp("guide")
    for name, code in _BLOCKS.items():
        (folder / name).write_text(code)
    sys.path.insert(0, str(folder))
    yield runpy.run_path(str(folder / "test_acme_engine.py"))
    sys.path.remove(str(folder))
    sys.modules.pop("acme_engine", None)


def test_the_package_has_fewer_than_80_lines() -> None:
    assert len(_BLOCKS["acme_engine.py"].splitlines()) < 80


@pytest.mark.parametrize("rule", [name for name in dir(EngineContract) if name.startswith("test_")])
def test_it_keeps_the_contract(guide: dict[str, Any], rule: str) -> None:
    getattr(guide["TestAcme"](), rule)()


SERVER = """
import http.server, json, os, sys
host, port = sys.argv[sys.argv.index("--listen") + 1].split(":")

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        ok = self.path == "/health" or self.headers["authorization"] == "Bearer " + os.environ["ACME_KEY"]
        self.send_response(200 if ok else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def do_GET(self):
        self.answer({"data": [{"id": sys.argv[sys.argv.index("--name") + 1]}]})
    def do_POST(self):
        self.answer({"choices": []})
    def log_message(self, *_):
        pass

http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


@pytest.mark.e2e
def test_what_it_says_to_launch_serves(guide: dict[str, Any], tmp_path: Path) -> None:
    program = tmp_path / "acme-serve"
    program.write_text(SERVER)
    home = EngineHome(command=(sys.executable, str(program)))
    (assignment,) = assignments(profile("acme"), home=home)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = guide["AcmeAdapter"]().launch(assignment)
    argv = [word.replace(":20000", f":{port}") for word in launch.argv]
    process = subprocess.Popen(argv, env={**os.environ, **launch.env})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while True:
                try:
                    assert client.get(launch.ready.path).status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.02)
            key = {"authorization": f"Bearer {CREDENTIAL}"}
            probe = launch.warm_up[0]
            asked = client.request(probe.method, probe.path, json=probe.body, headers=key)
            assert asked.status_code == 200
            models = client.get("/v1/models", headers=key).json()["data"]
            assert [model["id"] for model in models] == [*launch.expect_models]
    finally:
        process.kill()
        process.wait()
