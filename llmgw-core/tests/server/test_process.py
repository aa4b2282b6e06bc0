"""`llmgw server` as a process: signals, exit codes, and an environment that means no harm."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import httpx
import pytest

from llmgw.config.addresses import Address
from llmgw.server.listeners import listen

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

# A proxy for downloads that is not there: no call between our own parts may go to it (C010).
PROXIES = dict.fromkeys(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "grpc_proxy"), "http://127.0.0.1:9"
)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Process:
    """A server under test, and the lines of its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def wait_line(self, pattern: str) -> re.Match[str]:
        """Return the match of the first further line that has one."""
        seen = []
        while True:
            try:
                seen.append(self.lines.get(timeout=20))
            except Empty:
                raise AssertionError(f"no line with {pattern!r} in:\n{''.join(seen)}") from None
            if found := re.search(pattern, seen[-1]):
                return found

    def rest(self) -> str:
        """Return what it says until its end."""
        self.process.wait(20)
        text = ""
        while not self.lines.empty():
            text += self.lines.get()
        return text


@contextmanager
def started(*words: str, state_dir: Path) -> Iterator[Process]:
    command = [sys.executable, "-m", "llmgw", "server", "--state-dir", str(state_dir)]
    addresses = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *addresses, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **PROXIES},
    ) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


@contextmanager
def engine() -> Iterator[str]:
    """An engine that answers its health check and holds every other request for ever."""
    with listen(Address("127.0.0.1", 0)) as listener:
        listener.setblocking(True)
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                if peer.recv(4096).startswith(b"GET"):
                    peer.sendall(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
                    )
                    peer.close()
                else:
                    held.append(peer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        for peer in held:
            peer.close()


def api_of(server: Process) -> str:
    return "http://" + server.wait_line(r"serving api=(\S+)")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_without_a_traceback(
    tmp_path: Path, number: signal.Signals
) -> None:
    with engine() as url, started("--endpoint", f"e1={url}=m", state_dir=tmp_path) as server:
        assert httpx.get(f"{api_of(server)}/readyz", trust_env=False).status_code == 200
        server.process.send_signal(number)
        said = server.rest()
        assert server.process.returncode == 0
        assert "stopped" in said
        assert "Traceback" not in said


def test_a_second_signal_is_immediate_though_a_request_is_under_way(tmp_path: Path) -> None:
    with engine() as url, started("--endpoint", f"e1={url}=m", state_dir=tmp_path) as server:
        api = api_of(server)
        asking = threading.Thread(target=_ask, args=(api,), daemon=True)
        asking.start()
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("stopping signal=SIGTERM")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 128 + signal.SIGTERM


def _ask(api: str) -> None:
    try:
        httpx.post(f"{api}/v1/chat/completions", json=CHAT, trust_env=False, timeout=30)
    except httpx.HTTPError:
        pass  # the server has gone, as it should


def test_a_port_in_use_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    with listen(Address("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["--endpoint", "e1=http://127.0.0.1:9=m", "--listen", busy]
        with started(*words, state_dir=tmp_path) as server:
            said = server.rest()
    assert server.process.returncode == 2
    assert f"listen: {busy} is already in use" in said
    assert "Traceback" not in said


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "llmgw.yaml"
    with engine() as url:
        line = f"endpoints: [{{id: e1, url: '{url}', models: [NAME]}}]\n"
        file.write_text(line.replace("NAME", "one"))
        with started("--config", str(file), state_dir=tmp_path / "state") as server:
            api = api_of(server)
            file.write_text(line.replace("NAME", "two"))
            server.process.send_signal(signal.SIGHUP)
            server.wait_line("configuration reloaded")
            listed = httpx.get(f"{api}/v1/models", trust_env=False).json()["data"]
            assert [model["id"] for model in listed] == ["two"]


def test_a_second_server_on_one_state_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "llmgw.yaml"
    file.write_text("control: {enabled: 'on'}\nagent_listen: 127.0.0.1:0\n")
    with started("--config", str(file), state_dir=tmp_path / "state") as first:
        first.wait_line("serving")
        with started("--config", str(file), state_dir=tmp_path / "state") as second:
            said = second.rest()
        assert second.process.returncode == 2
        assert "llmgw: " in said
        assert "Traceback" not in said
