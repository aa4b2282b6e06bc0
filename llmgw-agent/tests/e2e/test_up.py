"""`llmgw up` as a new user meets it: the real demo model, real clients, real kills.

Covers BEHAVIOURS: engines serve while server or agent restarts; a client that leaves frees its slot.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from llmgw.testing.site import Site, wait_for

pytestmark = pytest.mark.e2e

QUESTION: Any = [{"role": "user", "content": "Which city is the capital of France?"}]


def engine(site: Site) -> dict[str, Any]:
    # A server that has just started knows nothing until its agents have reported.
    replicas = wait_for("a replica is known", lambda: site.ctl("replicas")["replicas"], 20)
    shard: dict[str, Any] = replicas[0]["shards"][0]
    return shard


def start_ticks(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def processes_of(site: Site, what: str) -> list[int]:
    """Pids of this site's `llmgw WHAT` processes, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            b"llmgw" in argv
            and what.encode() in argv
            and str(site.state_dir).encode() in b" ".join(argv)
        ):
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def serving(module_site: Site) -> Site:
    module_site.up()
    wait_for("the demo model answers", lambda: module_site.is_ready("smollm2"), 150)
    return module_site


@pytest.fixture
def client(serving: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_openai_client_lists_both_names(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} >= {"smollm2", "default"}
    assert client.models.retrieve("default").id == "default"


@pytest.mark.parametrize("name", ["smollm2", "default"])
def test_the_openai_client_completes_a_chat(client: openai.OpenAI, name: str) -> None:
    done = client.chat.completions.create(
        model=name, messages=QUESTION, max_tokens=32, temperature=0
    )
    assert "Paris" in (done.choices[0].message.content or "")
    assert done.model == name
    assert done.usage is not None
    assert done.usage.completion_tokens > 0


@pytest.mark.parametrize("name", ["smollm2", "default"])
def test_the_openai_client_streams_a_chat(client: openai.OpenAI, name: str) -> None:
    stream = client.chat.completions.create(
        model=name, messages=QUESTION, max_tokens=32, temperature=0, stream=True
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert len(chunks) > 5
    assert {chunk.model for chunk in chunks} == {name}


def test_an_unknown_model_is_404_with_its_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=QUESTION)
    assert caught.value.code == "model_not_found"


def test_tokens_arrive_one_after_the_other(serving: Site) -> None:
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 40, "stream": True}
    url = f"{serving.base_url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as reply:
        arrivals = [time.monotonic() for line in reply.iter_lines() if line.startswith("data:")]
    assert len(arrivals) > 10
    assert arrivals[-1] - arrivals[0] > 0.05


def test_a_client_that_leaves_frees_the_engines_slot_within_a_second(serving: Site) -> None:
    shard = engine(serving)
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 1800, "stream": True}
    body["ignore_eos"] = True  # llama.cpp's own field: it goes on to the limit
    url = f"{serving.base_url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as reply:
        assert reply.status_code == 200, reply.read()
        lines = reply.iter_lines()  # kept: httpx closes the connection with its iterator
        next(lines)
        wait_for("the slot is taken", lambda: busy_slots(serving, shard) > 0, 10)
    left = time.monotonic()
    wait_for("the slot is free", lambda: busy_slots(serving, shard) == 0, 5)
    assert time.monotonic() - left < 1.0


def busy_slots(site: Site, shard: dict[str, Any]) -> int:
    """Read the engine's own metrics page: what the router believes is not asked."""
    key = (site.state_dir / "agent" / "shards" / shard["id"] / "key").read_text().strip()
    page = httpx.get(
        f"http://127.0.0.1:{shard['ports'][0]}/metrics",
        headers={"authorization": f"Bearer {key}"},
        trust_env=False,
        timeout=5,
    ).text
    for line in page.splitlines():
        if line.startswith("llamacpp:requests_processing "):
            return int(float(line.split()[1]))
    raise AssertionError(page)


def test_a_killed_engine_is_replaced_and_its_end_is_told(serving: Site) -> None:
    before = engine(serving)
    os.kill(before["pid"], signal.SIGKILL)
    killed = time.monotonic()
    wait_for(
        "a new engine is ready", lambda: engine(serving)["pid"] not in (None, before["pid"]), 15
    )
    wait_for("it serves", lambda: serving.is_ready("smollm2"), 15)
    assert time.monotonic() - killed < 15
    after = engine(serving)
    assert after["restarts"] == before["restarts"] + 1
    assert after["cause"] == "killed"
    assert "SIGKILL" in after["message"]


@pytest.mark.parametrize("what", ["agent", "server"])
def test_a_killed_part_comes_back_and_the_engine_never_noticed(serving: Site, what: str) -> None:
    wait_for("ready", lambda: serving.is_ready("smollm2"), 20)
    shard = engine(serving)
    ticks = start_ticks(shard["pid"])
    (part,) = processes_of(serving, what)
    os.kill(part, signal.SIGKILL)
    if what == "agent":
        # Only the server's end touches requests, and only until it is back.
        assert all(serving.ask("smollm2", max_tokens=1).status_code == 200 for _ in range(5))
    wait_for("it is back", lambda: part not in (processes_of(serving, what) or [part]), 20)
    wait_for("it serves", lambda: serving.is_ready("smollm2"), 20)
    wait_for("adopted", lambda: engine(serving)["state"] == "ready", 20)
    assert engine(serving)["pid"] == shard["pid"]
    assert start_ticks(shard["pid"]) == ticks
    assert engine(serving)["restarts"] == shard["restarts"]


def test_a_second_up_is_refused_with_the_way_out(serving: Site) -> None:
    second = serving.run("up")
    assert second.returncode == 1
    assert "already running" in second.stderr
    assert "--state-dir" in second.stderr


def leftovers(site: Site) -> list[int]:
    """Pids of every process that was started below this site's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(site.home).encode() in text:
            found.append(int(entry.name))
    return found


def test_ctrl_c_leaves_no_process_and_no_port_behind(site: Site, tiny_gguf: Path) -> None:
    up = site.up(str(tiny_gguf))
    wait_for("it serves", lambda: site.is_ready("default"), 60)
    port = engine(site)["ports"][0]
    assert up.interrupt() == 0, up.text
    assert leftovers(site) == []
    for closed in (site.api_port, site.admin_port, port):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{closed}/", trust_env=False)


def test_the_engine_outlives_a_killed_up_and_the_next_one_adopts_it(
    site: Site, tiny_gguf: Path
) -> None:
    first = site.up(str(tiny_gguf))
    wait_for("it serves", lambda: site.is_ready("default"), 60)
    shard = engine(site)
    ticks = start_ticks(shard["pid"])
    first.kill()
    wait_for("server and agent ended with it", lambda: not _parts(site), 10)
    assert start_ticks(shard["pid"]) == ticks
    second = site.up(str(tiny_gguf))
    wait_for("it serves", lambda: site.is_ready("default"), 60)
    assert engine(site)["pid"] == shard["pid"]
    assert engine(site)["restarts"] == shard["restarts"]
    assert second.interrupt() == 0
    assert leftovers(site) == []


def _parts(site: Site) -> list[int]:
    return processes_of(site, "agent") + processes_of(site, "server")


def test_once_answers_and_ends(site: Site) -> None:
    started = time.monotonic()
    done = site.run(
        *("up", "--once", "--listen", f"127.0.0.1:{site.api_port}"),
        *("--admin-listen", f"127.0.0.1:{site.admin_port}"),
        limit_s=150,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "model ready" in done.stdout
    assert time.monotonic() - started < 120
    assert leftovers(site) == []


def test_ports_that_strangers_hold_are_passed_over_and_the_model_comes(site: Site) -> None:
    first, held = hold_ports(4)
    site.env["LLMGW_AGENT__PORT_RANGE"] = f"[{first}, {first + 40}]"
    try:
        done = site.run(
            *("up", "--once", "--listen", f"127.0.0.1:{site.api_port}"),
            *("--admin-listen", f"127.0.0.1:{site.admin_port}"),
            limit_s=150,
        )
    finally:
        for stranger in held:
            stranger.close()
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def hold_ports(count: int) -> tuple[int, list[socket.socket]]:
    """Listen on this many ports in a row, below those that the system gives out by itself."""
    for first in range(21_000, 29_000, 50):
        held: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                stranger = socket.socket()
                held.append(stranger)
                stranger.bind(("127.0.0.1", port))
                stranger.listen()
            return first, held
        except OSError:
            for stranger in held:
                stranger.close()
    raise AssertionError("no free ports in a row")
