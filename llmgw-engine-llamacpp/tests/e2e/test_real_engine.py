"""The real library, launched as the agent does it: by the adapter's own argv and environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import httpx
import pytest

from llmgw.contracts.engine import EngineHome, Launch
from llmgw.domain.replicas import Failure, FailureCause
from llmgw.testing.engine import CREDENTIAL, assignments, ended, profile
from llmgw.testing.tiny_gguf import write_tiny_gguf
from llmgw_engine_llamacpp import launcher, options
from llmgw_engine_llamacpp.adapter import LlamaCppAdapter

xllamacpp = pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.e2e

ADAPTER = LlamaCppAdapter()
QUICK = {"ctx_size": 512, "parallel": 2, "threads": 1, "poll": 0}


class Engine:
    """One launched shard."""

    def __init__(self, weights: Path, port: int, log: Path, given: Mapping[str, object]) -> None:
        item = profile("llamacpp", options={**QUICK, **given})
        (assignment,) = assignments(item, names=("tiny", "default"), home=EngineHome())
        spec = replace(assignment.spec, ports=(port,))
        self.launch: Launch = ADAPTER.launch(
            replace(assignment, spec=spec, weights_path=str(weights))
        )
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {CREDENTIAL}"},
            timeout=15,
            # The engine closes a connection after its hundredth request, between two of ours.
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                self.launch.argv, env={**os.environ, **self.launch.env}, stderr=out
            )

    def wait_ready(self) -> None:
        assert self.launch.ready is not None
        while self.process.poll() is None:
            try:
                healthy = self.client.get(self.launch.ready.path).status_code == 200
                # Health comes a moment before the launcher has hold of SIGTERM.
                if healthy and "llmgw: serving" in self.log.read_text():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def why(self) -> Failure:
        code = self.process.wait(10)
        return ADAPTER.explain_exit(ended(code, *self.log.read_text().splitlines()))


Start = Callable[..., Engine]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "tiny.gguf")


@pytest.fixture
def start(tiny: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Engine] = []

    def launch(weights: Path = tiny, port: int | None = None, **given: object) -> Engine:
        engine = Engine(weights, port or _free_port(), tmp_path / f"{len(started)}.log", given)
        started.append(engine)
        return engine

    yield launch
    for engine in started:
        engine.process.kill()
        engine.process.wait()
        engine.client.close()


def test_it_becomes_ready_answers_and_streams(start: Start) -> None:
    engine = start()
    engine.wait_ready()
    probe = engine.launch.warm_up[0]
    answer = engine.client.request(probe.method, probe.path, json=probe.body)
    assert answer.json()["model"] == "tiny"
    assert engine.client.get("/v1/models").json()["data"][0]["id"] == engine.launch.expect_models[0]
    body = {"model": "default", "stream": True, "max_tokens": 4, "prompt": "a"}
    lines = engine.client.post("/v1/completions", json=body).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    load = ADAPTER.read_load(engine.client.get("/metrics").text)
    assert (load.running, load.waiting) == (0, 0)
    assert load.generated_tokens is not None
    assert load.generated_tokens >= 4
    report = ADAPTER.read_memory(tuple(engine.log.read_text().splitlines()))
    assert report is not None
    assert report.main_memory_mib is not None
    assert 10 < report.main_memory_mib < 1000


def test_it_asks_for_its_key_which_no_other_user_can_see(start: Start) -> None:
    engine = start()
    engine.wait_ready()
    assert httpx.get(f"{engine.url}/v1/models").status_code == 401
    assert CREDENTIAL not in Path(f"/proc/{engine.process.pid}/cmdline").read_text()


def test_embeddings_are_served_where_asked_for(start: Start) -> None:
    engine = start(embeddings=True, pooling="mean")
    engine.wait_ready()
    (probe,) = engine.launch.warm_up
    answer = engine.client.request(probe.method, probe.path, json=probe.body)
    assert len(answer.json()["data"][0]["embedding"]) == 128


def test_sigterm_lets_the_request_in_flight_end(start: Start) -> None:
    engine = start()
    engine.wait_ready()
    texts: list[str] = []
    busy = threading.Thread(target=lambda: texts.append(_stream(engine, tokens=400)))
    busy.start()
    _wait_running(engine)
    engine.process.terminate()
    busy.join()
    assert texts[0].endswith("data: [DONE]\n\n")
    assert engine.process.wait(5) == 0


def test_a_second_sigterm_does_not_wait(start: Start) -> None:
    engine = start()
    engine.wait_ready()
    busy = threading.Thread(target=lambda: _stream(engine, tokens=20_000))
    busy.start()
    _wait_running(engine)
    engine.process.terminate()
    while "llmgw: draining" not in engine.log.read_text():
        time.sleep(0.02)
    engine.process.terminate()
    assert engine.process.wait(5) == -signal.SIGTERM
    busy.join()


def test_sigterm_when_idle_ends_it_well_and_soon(start: Start) -> None:
    engine = start()
    engine.wait_ready()
    engine.process.terminate()
    assert engine.process.wait(3) == 0


def test_sigkill_is_told_from_a_crash(start: Start) -> None:
    engine = start()
    engine.wait_ready()
    engine.process.kill()
    assert engine.why().cause is FailureCause.KILLED


def test_a_taken_port_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        failure = start(port=other.getsockname()[1]).why()
    assert failure.cause is FailureCause.PORT_IN_USE
    assert failure.exit_code == 1


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (None, FailureCause.WEIGHTS_MISSING),
        (b"hello, this is no GGUF", FailureCause.WEIGHTS_CORRUPT),
        (b"", FailureCause.WEIGHTS_CORRUPT),
        (400, FailureCause.WEIGHTS_CORRUPT),
        (100_000, FailureCause.WEIGHTS_CORRUPT),
    ],
)
def test_bad_weights_are_named(
    start: Start, tiny: Path, tmp_path: Path, damage: bytes | int | None, cause: FailureCause
) -> None:
    """A number: the file is cut off there, in its head or among its tensors."""
    weights = tmp_path / "bad.gguf"
    if damage is not None:
        weights.write_bytes(tiny.read_bytes()[:damage] if isinstance(damage, int) else damage)
    failure = start(weights).why()
    assert failure.cause is cause, failure.message


def test_every_option_is_taken_by_the_library(start: Start) -> None:
    """All that have a value of their own at once; a misspelt attribute would end the launcher."""
    engine = start(
        batch_size=256,
        ubatch_size=256,
        cache_type_k="q8_0",
        cache_type_v="f16",
        flash_attn="auto",
        cont_batching=True,
        kv_unified=True,
        cache_ram=16,
        cache_reuse=0,
        n_predict=-1,
        n_gpu_layers="all",
        split_mode="layer",
        main_gpu=0,
        threads_batch=1,
        threads_http=2,
        numa="distribute",
        repack=False,
        warmup=False,
        jinja=True,
        chat_template="chatml",
        chat_template_kwargs={"enable_thinking": False},
        reasoning_format="none",
        rope_scaling="none",
        rope_freq_base=10000.0,
        rope_freq_scale=1.0,
    )
    engine.wait_ready()
    assert engine.client.get("/props").json()["total_slots"] == 2


@pytest.mark.parametrize("word", get_args(options.CacheType))
def test_every_cache_type_has_a_member(word: str) -> None:
    assert launcher.member(xllamacpp.ggml_type, word).name == f"GGML_TYPE_{word.upper()}"


def test_an_unknown_parameter_is_named(start: Start, tiny: Path) -> None:
    engine = start()
    engine.process.kill()
    argv = [*engine.launch.argv[:-1], '{"no_such_thing": 1}']
    result = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    failure = ADAPTER.explain_exit(ended(result.returncode, *result.stderr.splitlines()))
    assert result.returncode == 2
    assert failure.cause is FailureCause.BAD_OPTION
    assert "no_such_thing" in failure.message


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _stream(engine: Engine, *, tokens: int) -> str:
    body = {"prompt": "a", "stream": True, "max_tokens": tokens, "ignore_eos": True}
    text = ""
    try:
        with engine.client.stream("POST", "/v1/completions", json=body) as answer:
            for part in answer.iter_text():
                text += part
    except httpx.TransportError:
        pass  # the second SIGTERM cuts it off
    return text


def _wait_running(engine: Engine) -> None:
    while not ADAPTER.read_load(engine.client.get("/metrics").text).running:
        time.sleep(0.01)
