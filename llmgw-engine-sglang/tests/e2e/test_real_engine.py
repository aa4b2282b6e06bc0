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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from llmgw.contracts.engine import Assignment, EngineHome, Launch
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

    def __init__(self, assignment: Assignment, log: Path) -> None:
        self.launch: Launch = ADAPTER.launch(assignment)
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
            base_url=f"http://127.0.0.1:{assignment.spec.ports[0]}",
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


Start = Callable[..., tuple[Engine, ...]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Launch every rank of one replica on loopback, on ports of their own."""
    started: list[Engine] = []

    def launch(**fields: object) -> tuple[Engine, ...]:
        made = assignments(
            profile("sglang", options=SMALL, **fields),
            names=("tiny", "default"),
            home=EngineHome(python=PYTHON),
        )
        ports = [_free_ports(13) for _ in made]
        peers = tuple(
            replace(peer, address="127.0.0.1", ports=ports[peer.rank])
            for peer in made[0].spec.peers
        )
        for each in made:
            spec = replace(each.spec, peers=peers, ports=ports[each.spec.rank])
            shard = replace(each, spec=spec, weights_path=str(MODEL), bind_address="127.0.0.1")
            started.append(Engine(shard, tmp_path / f"rank-{spec.rank}.log"))
        return tuple(started)

    yield launch
    for engine in started:
        engine.end()


def test_it_answers_hides_its_key_reports_its_load_and_ends_its_stream(start: Start) -> None:
    (engine,) = start()
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


def test_two_ranks_serve_together_and_leave_together(start: Start) -> None:
    first, second = start(
        nodes=2, parallel={"tensor": 2}, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    )
    first.wait_ready()
    probe = first.launch.warm_up[0]
    assert first.client.request(probe.method, probe.path, json=probe.body).status_code == 200
    first.process.terminate()
    assert first.process.wait(30) == 0
    assert second.process.wait(30) == 0


def _free_ports(count: int) -> tuple[int, ...]:
    """Return consecutive ports that are free now: the engine derives some from others."""
    for first in range(21000, 29000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if first not in _given:
            _given.add(first)
            return tuple(range(first, first + count))
    raise AssertionError("no free ports")


_given: set[int] = set()


def _stream(engine: Engine) -> str:
    body = {"model": "tiny", "prompt": "a", "stream": True, "max_tokens": 400, "ignore_eos": True}
    headers = {"content-type": "application/json"}
    text = json.dumps(body).encode()
    with engine.client.stream("POST", "/v1/completions", content=text, headers=headers) as answer:
        return "".join(answer.iter_text())
