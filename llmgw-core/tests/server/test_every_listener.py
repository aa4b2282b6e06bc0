"""What holds on the API holds on every listener: the server's two, and a stand-alone router's two.

The cases are those of docs/cases.md; how each is met is tried in detail in tests/router.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.config.addresses import Address
from llmgw.testing.cluster import running_router, running_server
from llmgw.testing.engine_script import Close, Hang, Script, ScriptedEngine, Send, chunk
from llmgw.testing.raw_http import RawAnswer, connect, get, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "say hello"}]}'
HIDDEN = post(CHAT, BODY)
SERVING = ("api", "router")
EVERY = (*SERVING, "admin", "router admin")
DEADLINES = {"request_head": 0.5, "request_body_idle": 0.5, "between_chunks": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where to send, the engine behind, and what opens the API."""

    engine: ScriptedEngine
    ports: dict[str, int]
    auth: dict[str, str]
    home: Path

    async def ask(self, name: str, request: bytes) -> RawAnswer:
        async with connect(self.ports[name]) as client:
            client.send(request)
            return await client.answer()

    async def chat(self, name: str, **fields: Any) -> RawAnswer:
        body = {"model": "demo", "messages": [], **fields}
        return await self.ask(name, post(CHAT, body, headers=self.auth))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Here so that one set of listeners serves all tests below."""
    return "asyncio"


@pytest.fixture
def listeners(running: Listeners) -> Listeners:
    """The listeners, with an engine that has seen nothing yet."""
    running.engine.requests.clear()
    running.engine.script = Script.plain({"choices": []})
    return running


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listeners]:
    tmp_path = tmp_path_factory.mktemp("listeners")
    async with ScriptedEngine() as engine:
        endpoint = {"id": "e1", "url": engine.url, "models": ["demo"], "health_path": None}
        settings: dict[str, Any] = {"router": {"deadlines": DEADLINES, "body_limit_mib": 0.01}}
        async with running_server(
            tmp_path / "server", endpoints=[endpoint], auth={"api_keys": "on"}, **settings
        ) as server:
            token = server.admin.headers["Authorization"].removeprefix("Bearer ")
            made = await server.admin.post("/admin/v1/keys", json={"name": "all"})
            auth = {"authorization": f"Bearer {made.json()['secret']}"}
            url = f"http://{server.serving.admin}"
            async with running_router(
                tmp_path / "router", url, token, auth={"api_keys": "on"}, **settings
            ) as (router, client):
                with anyio.fail_after(8):
                    # It has no event for us: its table comes from the server, over a socket.
                    while not (await client.get("/v1/models", headers=auth)).json().get("data"):  # noqa: ASYNC110
                        await anyio.sleep(0.02)
                addresses: dict[str, Address] = {
                    "api": server.serving.api,
                    "admin": server.serving.admin,
                    "router": router.api,
                    "router admin": router.admin,
                }
                yield Listeners(
                    engine=engine,
                    ports={name: address.port for name, address in addresses.items()},
                    auth=auth,
                    home=tmp_path,
                )


def head(*lines: str, path: str = CHAT) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", *lines, "", "")).encode()


MALFORMED = {
    "both framings": head("Host: t", "Content-Length: 5", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n",
    "two lengths": head("Host: t", "Content-Length: 73", "Content-Length: 0") + BODY,
    "a folded header": head("Host: t", "X-A: 1", " 2", "Content-Length: 0"),
    "bare line feeds": head("Host: t", "Content-Length: 0").replace(b"\r\n", b"\n"),
    "a space before the colon": head("Host: t", "Content-Length : 0"),
    "an odd chunk": head("Host: t", "Transfer-Encoding: chunked", path="/x") + b"0x5\r\nhello\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    "no host": head("Content-Length: 0"),
    "two hosts": head("Host: a", "Host: b", "Content-Length: 0"),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
}


@pytest.mark.parametrize("name", EVERY)
async def test_c001_what_could_be_read_in_two_ways_is_refused_and_closed(
    listeners: Listeners, name: str
) -> None:
    for what, sent in MALFORMED.items():
        async with connect(listeners.ports[name]) as client:
            client.send(sent + HIDDEN)
            answer = await client.answer()
            assert answer.status == 400, what
            assert answer.json()["error"]["code"] in ("invalid_http", "invalid_host"), what
            assert await client.is_closed(), what
    assert not listeners.engine.requests


@pytest.mark.parametrize("name", EVERY)
async def test_c002_heads_and_bodies_have_their_limits(listeners: Listeners, name: str) -> None:
    async def status(sent: bytes) -> int:
        return (await listeners.ask(name, sent)).status

    assert await status(head("Host: t", "Content-Length: 20000")) == 413
    big = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    auth = [f"{key}: {value}" for key, value in listeners.auth.items()]
    assert await status(head("Host: t", *auth, "Transfer-Encoding: chunked") + big) == 413
    assert await status(head("Host: t", *(f"X-{number}: 1" for number in range(120)))) == 431
    assert await status(head("Host: t", "X-A: " + "a" * 70_000)) == 431
    assert await status(head("Host: t", "Content-Encoding: gzip", "Content-Length: 0")) == 415
    assert not listeners.engine.requests


@pytest.mark.parametrize("name", EVERY)
async def test_slow_heads_and_bodies_are_cut(listeners: Listeners, name: str) -> None:
    auth = [f"{key}: {value}" for key, value in listeners.auth.items()]
    for sent in (b"POST / HTTP/1.1\r\nHo", head("Host: t", *auth, "Content-Length: 99") + b"{"):
        async with connect(listeners.ports[name]) as client:
            client.send(sent)
            assert (await client.answer()).status == 408
            assert await client.is_closed()


@pytest.mark.parametrize("name", EVERY)
async def test_c006_c011_c062_no_listener_redirects_or_knows_a_side_door(
    listeners: Listeners, name: str
) -> None:
    paths = ("/flush_cache", "/v1/../flush_cache", "//healthz", "/v1/%2e%2e/sleep", "/docs")
    slashes = ("/healthz/", "/v1/models/demo/", "/v1/chat/completions/", "/v1/v1/models")
    async with connect(listeners.ports[name]) as client:
        for path in (*paths, *slashes):
            for method in ("GET", "POST", "PURGE"):
                sent = get(path, method=method, headers={**listeners.auth, "content-length": "0"})
                client.send(sent.replace(b"host: test", b"host: 127.0.0.1"))
                answer = await client.answer()
                assert answer.status in (404, 405), (path, method)
                assert answer.json()["error"]["code"], (path, method)
                if answer.status == 405:
                    assert answer.header("allow"), (path, method)
    assert not listeners.engine.requests


@pytest.mark.parametrize("name", EVERY)
async def test_c060_a_key_of_any_letters_is_only_a_wrong_key(
    listeners: Listeners, name: str
) -> None:
    path = {"admin": "/admin/v1/status", "router admin": "/metrics"}.get(name, "/v1/models")
    odd = ("", "Bearer", "Bearer ", "bearer  x", "Bearer clé“", "\ufeffBearer x", "Basic dTpw")
    for value in (*odd, "Bearer " + "x" * 20_000):
        line = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {value}\r\n\r\n"
        answer = await listeners.ask(name, line.encode())
        assert answer.status == 401, value
        assert answer.json()["error"]["code"]
        assert str(answer.header("www-authenticate")).startswith("Bearer")


@pytest.mark.parametrize("name", SERVING)
@pytest.mark.parametrize("stream", [False, True])
async def test_c009_c011_c063_bad_bodies_are_400_or_404_with_a_code(
    listeners: Listeners, name: str, stream: bool
) -> None:
    start = '{"stream": true, ' if stream else "{"
    bad = {
        '"model": "demo", "messages": ["\\ud83d"]}': 400,
        '"model": "demo", "model": "other"}': 400,
        '"model": 5}': 400,
        '"messages": []}': 400,
        '"model": "demo", "messages": [': 400,
        '"model": "nope"}': 404,
        '"model": "demo "}': 404,
    }
    for rest, status in bad.items():
        sent = post(CHAT, (start + rest).encode(), headers=listeners.auth)
        answer = await listeners.ask(name, sent)
        assert answer.status == status, rest
        assert answer.header("content-type") == "application/json"
        assert answer.error()["code"], rest
    assert not listeners.engine.requests


@pytest.mark.parametrize("name", SERVING)
async def test_c008_c012_c013_c022_c023_events_pass_as_they_are(
    listeners: Listeners, name: str
) -> None:
    raw = 'data:{"choices":[],"x":"naïve 北京 🙂"}\r\n\r\n: hello\n\ndata: [DONE]\n\n'.encode()
    pieces = [chunk(raw[start : start + 7]) for start in range(0, len(raw), 7)]
    listeners.engine.script = Script.raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: a=b\r\n"
        b"connection: x-inner\r\nx-inner: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        *pieces,
        b"0\r\n\r\n",
    )
    answer = await listeners.chat(name, stream=True)
    text = answer.body.decode()
    assert "naïve 北京 🙂" in text
    assert text.rstrip().endswith("[DONE]")
    assert answer.header("x-accel-buffering") == "no"
    assert answer.header("set-cookie") is answer.header("x-inner") is None
    (request,) = listeners.engine.requests
    assert request.header("authorization") is None


@pytest.mark.parametrize("name", SERVING)
@pytest.mark.parametrize("end", [Close(), Close(reset=True), Hang()])
async def test_c014_c015_an_engine_that_dies_or_falls_silent_is_an_error_event(
    listeners: Listeners, name: str, end: Any
) -> None:
    token = '{"choices": [{"index": 0, "delta": {"content": "x"}}]}'
    listeners.engine.script = Script.events(token, end=[Send(b'10\r\ndata: {"ch'), end])
    answer = await listeners.chat(name, stream=True)
    first, last = answer.events()
    assert json.loads(first)["choices"]
    assert json.loads(last)["error"]["code"]


@pytest.mark.parametrize("name", SERVING)
async def test_c018_c019_a_client_that_leaves_stops_the_engine(
    listeners: Listeners, name: str
) -> None:
    engine = listeners.engine
    for script in (Script.raw(Hang()), Script.events('{"choices": []}', end=[Hang()])):
        engine.script = script
        engine.requests.clear()
        async with connect(listeners.ports[name]) as client:
            body = {"model": "demo", "messages": [], "stream": True}
            client.send(post(CHAT, body, headers=listeners.auth))
            await engine.wait_until(lambda engine: bool(engine.requests))
        with anyio.fail_after(2):
            await engine.wait_until(lambda engine: engine.requests[0].peer_left)


@pytest.mark.parametrize("name", SERVING)
async def test_c024_a_clients_mistake_is_passed_on_and_harms_nobody(
    listeners: Listeners, name: str
) -> None:
    listeners.engine.script = Script.plain({"error": {"message": "too long"}}, status=400)
    for _ in range(10):
        answer = await listeners.chat(name)
        assert answer.status == 400
        assert answer.error()["message"] == "too long"
    assert len(listeners.engine.requests) == 10
    listeners.engine.script = Script.plain({"choices": []})
    assert (await listeners.chat(name)).status == 200


async def test_c061_no_secret_and_no_prompt_is_in_any_answer_log_or_metric(
    listeners: Listeners, capfd: pytest.CaptureFixture[str]
) -> None:
    """Markers in every place of a request, errors of every kind; then look everywhere."""
    marks = {"key": "mark-key", "prompt": "mark-prompt", "cookie": "mark-cookie", "query": "mark-q"}
    said: list[bytes] = []
    for script in (
        Script.plain({"error": {"message": "bad"}}, status=400),
        Script.plain({"error": {"message": "bad"}}, status=500),
        Script.raw(b"no HTTP at all\r\n\r\n"),
        Script.raw(Close(reset=True)),
        Script.events('{"choices": []}', end=[Close()]),
    ):
        listeners.engine.script = script
        for name in SERVING:
            for body in (
                {"model": "demo", "messages": [{"role": "user", "content": marks["prompt"]}]},
                {"model": "demo", "stream": True, "messages": [marks["prompt"]]},
                {"model": 5, "messages": [marks["prompt"]]},
            ):
                for auth in (listeners.auth["authorization"], f"Bearer {marks['key']}"):
                    headers = {"authorization": auth, "cookie": marks["cookie"]}
                    sent = post(f"{CHAT}?api_key={marks['query']}", body, headers=headers)
                    said.append((await listeners.ask(name, sent)).body)
    key = listeners.auth["authorization"].removeprefix("Bearer ")
    written = b"".join(path.read_bytes() for path in listeners.home.rglob("*") if path.is_file())
    printed = "".join(capfd.readouterr())
    for mark in (*marks.values(), key.rpartition("_")[2]):
        assert mark.encode() not in b"".join(said), mark
        assert mark.encode() not in written, mark
        assert mark not in printed, mark
