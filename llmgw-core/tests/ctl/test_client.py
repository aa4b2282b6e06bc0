"""A change that came to the wrong server goes to the right one, and the token nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from llmgw.ctl.client import Client, trust_of
from llmgw.ctl.target import Target
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, PermanentError, RequestError, TransientError
from llmgw.testing.pem import write_pair

FOLLOWER, LEADER = "https://gw-1:8081", "https://gw-2:8081"
Answer = Callable[[httpx.Request], httpx.Response]


def follower_of(leader: str | None) -> httpx.Response:
    error = {"message": "it does not lead", "type": "server_error", "code": "not_leader"}
    return httpx.Response(503, json={"error": {**error, "leader_url": leader}})


class Servers:
    """Answers for every address, and keeps what was asked."""

    def __init__(self, answer: Answer, server: str = FOLLOWER) -> None:
        self.asked: list[httpx.Request] = []
        self.told: list[str] = []
        self._answer = answer
        target = Target(server=server, token=Secret("the-token"))
        transport = httpx.MockTransport(self._handle)
        self.client = Client(target, transport, tell=self.told.append)

    @property
    def hosts(self) -> list[str]:
        return [f"{request.url.scheme}://{request.url.netloc.decode()}" for request in self.asked]

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self._answer(request)


def test_a_change_goes_on_to_the_leader_once_and_whole() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return follower_of(LEADER) if "gw-1" in request.url.host else httpx.Response(200, text="ok")

    servers = Servers(answer)
    body: dict[str, object] = {"models": []}
    assert servers.client.send("POST", "/catalog", body, etag='"7"', owner="api") == "ok"
    assert servers.hosts == [FOLLOWER, LEADER]
    first, second = servers.asked
    assert json.loads(second.content) == body
    assert second.url.raw_path == first.url.raw_path == b"/admin/v1/catalog?owner=api"
    assert second.headers["authorization"] == "Bearer the-token"
    assert second.headers["if-match"] == '"7"'
    assert servers.told == [f"{FOLLOWER} does not lead; sent to {LEADER}, which does"]


def test_two_servers_that_name_each_other_are_asked_once_each() -> None:
    servers = Servers(lambda request: follower_of(FOLLOWER if "2" in request.url.host else LEADER))
    with pytest.raises(RequestError, match="it does not lead"):
        servers.client.send("DELETE", "/catalog/m")
    assert servers.hosts == [FOLLOWER, LEADER]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (FOLLOWER, None),
        (FOLLOWER, "http://gw-2:8081"),
        ("http://127.0.0.1:8081", "http://gw-2:8081"),
        (FOLLOWER, "https://user@evil.example"),
        (FOLLOWER, "https://evil.example/path"),
        (FOLLOWER, "https://evil.example?x="),
        (FOLLOWER, "ftp://gw-2:8081"),
        (FOLLOWER, "gw-2:8081"),
        (FOLLOWER, "https://"),
    ],
)
def test_the_token_goes_nowhere_where_it_would_be_less_safe(asked: str, named: str | None) -> None:
    servers = Servers(lambda _: follower_of(named), asked)
    with pytest.raises(RequestError, match="it does not lead") as refused:
        servers.client.send("POST", "/catalog", {})
    assert refused.value.code == "not_leader"
    assert servers.hosts == [asked]
    assert servers.told == []


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("http://10.0.0.1:8081", "http://10.0.0.2:8081"),
        ("http://127.0.0.1:8081", "http://127.0.0.1:9081"),
        ("http://127.0.0.1:8081", "https://[fd00::2]:8081"),
    ],
)
def test_a_way_that_is_as_safe_is_taken(asked: str, named: str) -> None:
    servers = Servers(lambda _: follower_of(named), asked)
    with pytest.raises(RequestError):
        servers.client.send("POST", "/catalog", {})
    assert servers.hosts == [asked, named]


def test_an_answer_that_only_redirects_is_not_followed() -> None:
    servers = Servers(lambda _: httpx.Response(307, headers={"location": LEADER}))
    servers.client.send("POST", "/catalog", {})
    assert servers.hosts == [FOLLOWER]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version"), "by http://"),
        (
            httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] verify failed: unknown (_ssl.c)"),
            r"safely \(unknown\); --server-ca FILE",
        ),
        (httpx.RemoteProtocolError("disconnected"), "by https://"),
        (httpx.ConnectError("refused"), "is the server running"),
    ],
)
def test_a_server_that_cannot_be_reached_says_what_to_do(error: httpx.HTTPError, said: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        error.request = request
        raise error

    with pytest.raises(TransientError, match=said):
        Servers(answer).client.get("/status")


@pytest.mark.parametrize("server", ["::", "http://gw:port"])
def test_what_is_no_url_is_a_mistake_in_the_usage(server: str) -> None:
    with pytest.raises(ConfigError, match=r"--server: .* is no URL"):
        Client(Target(server=server, token=None)).get("/status")


def test_who_only_looks_changes_nothing_and_may_plan() -> None:
    servers = Servers(lambda _: httpx.Response(200, text="ok"))
    servers.client.only_looks = True
    assert servers.client.get("/nodes") == servers.client.send("POST", "/plan", {}) == "ok"
    with pytest.raises(PermanentError, match="changes something"):
        servers.client.send("DELETE", "/nodes/gpu-01")
    assert len(servers.asked) == 2


def test_only_the_named_authority_vouches_for_a_server(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair")
    target = Target(server=LEADER, token=None, server_ca=pair / "cert.pem")
    assert trust_of(target).cert_store_stats()["x509"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("hello", "no certificate in PEM"), ("", "no certificate in PEM")],
)
def test_an_authority_that_cannot_be_read_is_named(
    content: str | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=rf"--server-ca: .*ca\.crt cannot be used: .*{said}"):
        trust_of(Target(server=LEADER, token=None, server_ca=file))
