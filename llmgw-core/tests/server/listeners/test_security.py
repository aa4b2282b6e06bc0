"""Keys, secrets, and what nobody may make the router do."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.testing.engine_script import Close, Script
from llmgw.testing.raw_http import post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
SERVING = ("api", "router")


async def test_c060_a_key_of_any_letters_is_only_a_wrong_key(listeners: Any, listener: str) -> None:
    path = {"admin": "/admin/v1/status", "router admin": "/metrics"}.get(listener, "/v1/models")
    odd = ("", "Bearer", "Bearer ", "bearer  x", "Bearer clé“", "\ufeffBearer x", "Basic dTpw")
    for value in (*odd, "Bearer " + "x" * 20_000):
        line = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {value}\r\n\r\n"
        answer = await listeners.ask(listener, line.encode())
        assert answer.status == 401, value
        assert answer.json()["error"]["code"]
        assert str(answer.header("www-authenticate")).startswith("Bearer")


async def test_c061_no_secret_and_no_prompt_is_in_any_answer_log_or_metric(
    listeners: Any, capfd: pytest.CaptureFixture[str]
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
    for mark in (*marks.values(), key.split("_", 2)[2]):
        assert mark.encode() not in b"".join(said), mark
        assert mark.encode() not in written, mark
        assert mark not in printed, mark


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "http://2130706433/"]
)
async def test_c064_a_picture_s_url_is_passed_on_and_never_fetched(
    listeners: Any, serving: str, url: str
) -> None:
    picture = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [picture]}]
    assert (await listeners.chat(serving, messages=messages)).status == 200
    (request,) = listeners.engine.requests
    assert request.json()["messages"] == messages
