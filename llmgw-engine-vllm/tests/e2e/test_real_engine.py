"""The real vLLM on a CPU, launched by the adapter's own argv and environment.

It takes minutes, so it runs only where LLMGW_VLLM_PYTHON names an interpreter that has vLLM and
LLMGW_VLLM_MODEL a folder with a small model (docs/engines/vllm.md says how to make both).
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

from llmgw.contracts.engine import Assignment, EngineHome
from llmgw.domain.catalog import Profile
from llmgw.domain.replicas import FailureCause
from llmgw.testing.engine import CREDENTIAL, assignments, ended, profile
from llmgw_engine_vllm.adapter import VllmAdapter

PYTHON, MODEL = os.environ.get("LLMGW_VLLM_PYTHON"), os.environ.get("LLMGW_VLLM_MODEL")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (PYTHON and MODEL), reason="LLMGW_VLLM_PYTHON, LLMGW_VLLM_MODEL unset"),
]

ADAPTER = VllmAdapter()
SMALL = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "cpu_kvcache_space": 1,
}


class Rank:
    """One launched shard, with its whole process tree in a session of its own."""

    def __init__(self, assignment: Assignment, log: Path) -> None:
        self.launch = ADAPTER.launch(assignment)
        self.log = log
        env = {**os.environ, **self.launch.env}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.launch.argv, env=env, stdout=out, stderr=out, start_new_session=True
            )
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{assignment.spec.ports[0]}",
            headers={"authorization": f"Bearer {CREDENTIAL}"},
            timeout=300,
        )

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.log.read_text(errors="replace").splitlines())

    def wait_ready(self) -> None:
        while self.process.poll() is None:
            try:
                if self.client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError("\n".join(self.lines[-40:]))

    def warm_up(self) -> httpx.Response:
        probe = self.launch.warm_up[0]
        return self.client.request(probe.method, probe.path, json=probe.body)

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.client.close()


Start = Callable[[Profile], tuple[Rank, ...]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    ranks: list[Rank] = []

    def launch(of: Profile) -> tuple[Rank, ...]:
        home = EngineHome(python=PYTHON)
        ports = _free_ports(8)
        made = assignments(of, names=("tiny", "default"), home=home)
        peers = tuple(
            replace(peer, address="127.0.0.1", ports=ports[4 * peer.rank : 4 * peer.rank + 4])
            for peer in made[0].spec.peers
        )
        for each in made:
            rank = each.spec.rank
            spec = replace(each.spec, peers=peers, ports=ports[4 * rank : 4 * rank + 4])
            shard = replace(each, spec=spec, weights_path=str(MODEL), bind_address="127.0.0.1")
            ranks.append(Rank(shard, tmp_path / f"rank-{rank}.log"))
        return tuple(ranks[-len(made) :])

    yield launch
    for rank in ranks:
        rank.end()


def test_it_answers_reports_its_load_and_ends_its_stream_before_it_exits(start: Start) -> None:
    (engine,) = start(profile("vllm", options=SMALL))
    engine.wait_ready()
    assert engine.warm_up().json()["usage"]["completion_tokens"] == 1
    served = [item["id"] for item in engine.client.get("/v1/models").json()["data"]]
    assert served == list(engine.launch.expect_models)
    assert httpx.get(engine.client.base_url.join("/v1/models")).status_code == 401
    load = ADAPTER.read_load(engine.client.get("/metrics").text)
    assert (load.running, load.waiting) == (0, 0)
    report = ADAPTER.read_memory(engine.lines)
    assert report is not None
    assert report.kv_cache_tokens

    texts: list[str] = []
    busy = threading.Thread(target=lambda: texts.append(_stream(engine, tokens=300)))
    busy.start()
    while not ADAPTER.read_load(engine.client.get("/metrics").text).running:
        time.sleep(0.05)
    engine.process.terminate()
    busy.join()
    assert texts[0].endswith("data: [DONE]\n\n")
    assert engine.process.wait(45) == 0


def test_an_option_that_does_not_fit_the_model_is_named(start: Start) -> None:
    (engine,) = start(profile("vllm", options={**SMALL, "max_model_len": 999_999}))
    failure = ADAPTER.explain_exit(ended(engine.process.wait(120), *engine.lines))
    assert failure.cause is FailureCause.BAD_OPTION
    assert "max_model_len" in failure.message


def test_two_ranks_serve_together_and_the_death_of_one_ends_the_other(start: Start) -> None:
    item = profile("vllm", nodes=2, parallel={"tensor": 2}, options=SMALL)
    first, second = start(item)
    first.wait_ready()
    assert first.warm_up().status_code == 200
    os.killpg(second.process.pid, signal.SIGKILL)
    second.process.wait()
    first.warm_up()
    code = first.process.wait(60)
    failure = ADAPTER.explain_exit(replace(ended(code, *first.lines), was_ready=True))
    assert failure.cause is FailureCause.ENGINE_INTERNAL


def _free_ports(count: int) -> tuple[int, ...]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(probe.getsockname()[1] for probe in probes)
    for probe in probes:
        probe.close()
    return ports


def _stream(engine: Rank, *, tokens: int) -> str:
    body = {
        "model": "tiny",
        "prompt": "a",
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    with engine.client.stream(
        "POST",
        "/v1/completions",
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    ) as answer:
        return "".join(answer.iter_text())
