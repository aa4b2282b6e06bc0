"""The stand-in engine does what its flags say. Real processes and sockets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from llmgw.testing import fake_engine
from llmgw.testing.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.e2e

CHAT = {"messages": [], "max_tokens": 3}


class Engine:
    def __init__(self, *flags: str, key: str = "") -> None:
        program = [sys.executable, fake_engine.__file__, *flags]
        self.process = subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, env={**os.environ, "FAKE_ENGINE_KEY": key}
        )
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if match := re.fullmatch(r"listening on (\d+)", self.said[-1]):
                self.url = f"http://127.0.0.1:{match[1]}"
                return

    def chat(self, **more: object) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json={**CHAT, **more}, timeout=5)


Start = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Engine] = []

    def launch(*flags: str, key: str = "") -> Engine:
        started.append(Engine(*flags, key=key))
        return started[-1]

    yield launch
    for engine in started:
        engine.process.kill()
        engine.process.wait()
        assert engine.process.stdout is not None
        engine.process.stdout.close()


def test_it_answers_and_streams(start: Start) -> None:
    engine = start("--served-name", "m")
    assert engine.chat().json()["choices"][0]["message"]["content"] == "w0 w1 w2 "
    assert engine.chat(stream=True).text.count("data: ") == 4
    page = httpx.get(f"{engine.url}/metrics").text
    assert "fake_generated_tokens_total 6" in page


def test_it_is_ready_when_told(start: Start) -> None:
    engine = start("--ready-after", "0.3")
    assert httpx.get(f"{engine.url}/health").status_code == 503
    assert engine.chat().status_code == 503
    while httpx.get(f"{engine.url}/health").status_code != 200:
        pass
    assert engine.chat().status_code == 200


def test_its_health_lies_when_told(start: Start) -> None:
    engine = start("--ready-after", "60", "--health-lies")
    assert httpx.get(f"{engine.url}/health").status_code == 200
    assert engine.chat().status_code == 503


def test_it_hangs_fails_and_crashes_when_told(start: Start) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{start('--hang-completions').url}/v1/completions", json={}, timeout=0.3)
    assert start("--fail-completions", "500").chat().status_code == 500
    crashing = start("--crash-every", "2", "--exit-code", "7")
    assert crashing.chat().status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        crashing.chat()
    assert crashing.process.wait(5) == 7


def test_it_asks_for_the_key_that_it_was_given(start: Start) -> None:
    engine = start(key="k")
    assert httpx.get(f"{engine.url}/v1/models").status_code == 401
    headers = {"authorization": "Bearer k"}
    assert httpx.get(f"{engine.url}/v1/models", headers=headers).status_code == 200


def test_it_ends_by_itself_with_the_code_that_it_was_given(start: Start) -> None:
    engine = start("--exit-after", "0.1", "--exit-code", "3", "--say", "hello")
    assert engine.process.wait(5) == 3
    assert engine.said[0] == "hello"


def test_sigterm_ends_it_unless_it_is_deaf(start: Start) -> None:
    obedient, deaf = start(), start("--ignore-term")
    obedient.process.terminate()
    deaf.process.terminate()
    assert obedient.process.wait(5) == 0
    with pytest.raises(subprocess.TimeoutExpired):
        deaf.process.wait(0.2)


def test_it_ends_open_requests_first_when_told_to_drain(start: Start) -> None:
    engine = start("--drain", "--token-delay", "0.1")
    statuses: list[int] = []
    client = threading.Thread(target=lambda: statuses.append(engine.chat().status_code))
    client.start()
    while "fake_requests_running 1" not in httpx.get(f"{engine.url}/metrics").text:
        pass
    engine.process.terminate()
    client.join()
    assert statuses == [200]
    assert engine.process.wait(5) == 0


def test_its_children_have_sessions_of_their_own(start: Start) -> None:
    engine = start("--children", "2")
    children = _children(engine.process.pid)
    assert len(children) == 2
    assert {os.getsid(pid) for pid in children} == set(children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def test_a_taken_port_is_an_error(start: Start) -> None:
    port = start().url.rsplit(":", 1)[1]
    second = start("--port", port)
    assert second.process.wait(5) == 1
    assert "Address already in use" in second.said[-1]


def test_the_tiny_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first, second = (write_tiny_gguf(tmp_path / name, seed=1) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[:4] == b"GGUF"
    assert write_tiny_gguf(tmp_path / "c", seed=2).read_bytes() != first.read_bytes()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]
