"""The real SGLang on a CPU, launched by the adapter's own argv and environment.

It takes minutes, so it runs only where LLMGW_SGLANG_PYTHON names an interpreter that has SGLang
and LLMGW_SGLANG_MODEL a folder with a small model (docs/engines/sglang.md).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from llmgw.contracts.engine import EngineHome, Launch
from llmgw.testing.engine import CREDENTIAL, assignments, profile
from llmgw_engine_sglang.adapter import SglangAdapter

PYTHON, MODEL = os.environ.get("LLMGW_SGLANG_PYTHON"), os.environ.get("LLMGW_SGLANG_MODEL")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (PYTHON and MODEL), reason="LLMGW_SGLANG_PYTHON, LLMGW_SGLANG_MODEL unset"
    ),
]

ADAPTER = SglangAdapter()
SMALL = {
    "attention_backend": "torch_native",
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.2,
    "max_total_tokens": 8192,
}


class Engine:
    """One launched shard, with its whole process tree in a session of its own."""

    def __init__(self, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        home = EngineHome(python=PYTHON)
        item = profile("sglang", options=SMALL)
        (made,) = assignments(item, names=("tiny", "default"), home=home, ports_per_shard=13)
        spec = replace(made.spec, ports=(port, *range(port + 1, port + 13)))
        self.launch: Launch = ADAPTER.launch(replace(made, spec=spec, weights_path=str(MODEL)))
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.launch.argv,
                env={**os.environ, **self.launch.env},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {CREDENTIAL}"},
            timeout=300,
        )

    def wait_ready(self) -> None:
        while self.process.poll() is None:
            try:
                if self.client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise AssertionError(self.log.read_text(errors="replace")[-4000:])

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.client.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "log")
    yield engine
    engine.end()


def test_it_answers_hides_its_key_reports_its_load_and_ends_its_stream(engine: Engine) -> None:
    engine.wait_ready()
    probe = engine.launch.warm_up[0]
    answer = engine.client.request(probe.method, probe.path, json=probe.body)
    assert answer.json()["usage"]["completion_tokens"] == 1
    served = [item["id"] for item in engine.client.get("/v1/models").json()["data"]]
    assert served == list(engine.launch.expect_models)
    assert httpx.get(engine.client.base_url.join("/v1/models")).status_code == 401
    log = engine.log.read_text(errors="replace")
    assert "api_key" in log
    assert CREDENTIAL not in log
    assert CREDENTIAL not in Path(f"/proc/{engine.process.pid}/cmdline").read_text()
    report = ADAPTER.read_memory(tuple(log.splitlines()))
    assert report is not None
    assert report.kv_cache_tokens

    texts: list[str] = []
    busy = threading.Thread(target=lambda: texts.append(_stream(engine)))
    busy.start()
    while not (load := ADAPTER.read_load(engine.client.get("/metrics").text)).running:
        time.sleep(0.05)
    assert load.progress is not None
    engine.process.terminate()
    busy.join()
    assert texts[0].endswith("data: [DONE]\n\n")
    assert engine.process.wait(30) == 0


def _stream(engine: Engine) -> str:
    body = {"model": "tiny", "prompt": "a", "stream": True, "max_tokens": 400, "ignore_eos": True}
    headers = {"content-type": "application/json"}
    text = json.dumps(body).encode()
    with engine.client.stream("POST", "/v1/completions", content=text, headers=headers) as answer:
        return "".join(answer.iter_text())
