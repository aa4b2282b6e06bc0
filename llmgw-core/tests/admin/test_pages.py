"""The page: signed in or not at all, every text escaped, every change the API's own."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest

from llmgw.admin.parts import AdminParts
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.store import Store
from llmgw.store.tokens import Role
from llmgw.testing.clock import FakeClock, FastClock
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.values import device, inventory

pytestmark = pytest.mark.anyio

Connect = Callable[..., Awaitable[httpx.AsyncClient]]
HERE = "http://localhost:8081"
FORM = {"origin": HERE}
PAGES = ["", "/nodes", "/models", "/replicas", "/events", "/logs", "/keys"]
MARKUP = "<img src=x onerror=alert(1)>'\"</pre><script>alert(1)</script>"


@pytest.fixture
async def browser(connect: Connect) -> httpx.AsyncClient:
    """A client without a token of its own, that keeps cookies."""
    client = await connect(None)
    client.base_url = httpx.URL(f"{HERE}/admin")
    return client


async def sign_in(browser: httpx.AsyncClient, token: str, origin: str = HERE) -> httpx.Response:
    form = {"token": token, "next": "/admin/nodes"}
    return await browser.post("/sign-in", data=form, headers={"origin": origin})


@pytest.mark.parametrize("path", [*PAGES, "/nodes/x", "/models/x"])
async def test_without_a_session_every_page_leads_to_the_sign_in(
    browser: httpx.AsyncClient, path: str
) -> None:
    answer = await browser.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/admin/sign-in?next=/admin")


async def test_a_token_opens_a_session_whose_cookie_no_script_reads(
    browser: httpx.AsyncClient,
) -> None:
    answer = await sign_in(browser, "the-operator's-own")
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin/nodes")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "the-operator" not in cookie
    assert (await browser.get("")).status_code == 200
    await browser.post("/sign-out", headers=FORM)
    assert (await browser.get("")).status_code == 303


@pytest.mark.parametrize("token", ["wrong", "clé", "“quoted”", "\ufeffx", "", "x" * 100_000])
async def test_a_wrong_or_odd_token_is_told_so_and_not_repeated(
    browser: httpx.AsyncClient, token: str
) -> None:
    """C060"""
    answer = await sign_in(browser, token)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert not token or token not in answer.text


async def test_a_session_ends_with_its_token_and_with_time(
    browser: httpx.AsyncClient, store: Store, clock: FakeClock
) -> None:
    record, token = store.tokens.create("ops", Role.VIEWER, who="test")
    await sign_in(browser, token.reveal())
    assert (await browser.get("")).status_code == 200
    store.tokens.revoke(record.id)
    await clock.advance(11)
    assert (await browser.get("")).status_code == 303

    await sign_in(browser, "the-operator's-own")
    await clock.advance(12 * 3600)
    assert (await browser.get("")).status_code == 303


@pytest.mark.parametrize(
    "wanted", ["https://evil.example", "//evil.example", "/admin\\@evil", "/v1"]
)
async def test_signing_in_leads_only_to_our_own_pages(
    browser: httpx.AsyncClient, wanted: str
) -> None:
    form = {"token": "the-operator's-own", "next": wanted}
    answer = await browser.post("/sign-in", data=form, headers=FORM)
    assert answer.headers["location"] == "/admin"


async def test_a_viewer_sees_no_forms_and_may_not_send_them(
    browser: httpx.AsyncClient, store: Store
) -> None:
    _, token = store.tokens.create("eyes", Role.VIEWER, who="test")
    await sign_in(browser, token.reveal())
    assert "Make a key" not in (await browser.get("/keys")).text
    assert (await browser.post("/keys", data={"name": "x"}, headers=FORM)).status_code == 403
    assert (await browser.get("/logs")).status_code == 403
    assert store.keys.list() == ()


async def test_a_form_of_another_site_or_of_none_does_nothing(
    browser: httpx.AsyncClient, store: Store
) -> None:
    await sign_in(browser, "the-operator's-own")
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {}):
        answer = await browser.post("/keys", data={"name": "x"}, headers=headers)
        assert answer.status_code == 403
    assert store.keys.list() == ()


async def test_a_key_made_on_the_page_is_shown_once_and_recorded(
    browser: httpx.AsyncClient, store: Store
) -> None:
    await sign_in(browser, "the-operator's-own")
    made = await browser.post(
        "/keys", data={"name": MARKUP, "models": "a, b", "requests_per_minute": "5"}, headers=FORM
    )
    (record,) = store.keys.list()
    assert record.key.models == ("a", "b")
    assert record.key.limits.requests_per_minute == 5
    assert re.search(rf"llmgw_{record.key.id}_\S+</pre>", made.text)
    shown = (await browser.get("/keys")).text
    assert record.key.id in shown
    assert f"llmgw_{record.key.id}_" not in shown
    assert MARKUP not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert [event.kind for event in store.events.list()] == ["key_created"]

    await browser.post(f"/keys/{record.key.id}/revoke", headers=FORM)
    assert store.keys.list()[0].revoked_at is not None


async def test_a_form_that_is_wrong_says_what(browser: httpx.AsyncClient) -> None:
    await sign_in(browser, "the-operator's-own")
    answer = await browser.post("/keys", data={"name": ""}, headers=FORM)
    assert answer.status_code == 400
    assert "name" in answer.text


async def test_pages_have_no_inline_script_or_style(browser: httpx.AsyncClient) -> None:
    await sign_in(browser, "the-operator's-own")
    for path in ("", "/models", "/events", "/progress", "/logs", "/keys", "/sign-in"):
        text = (await browser.get(path)).text
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path
        assert not re.search(r"<style|<[^>]*\s(style|on\w+)=|javascript:", text), path
        assert '<html lang="en">' in text


@pytest.mark.parametrize(
    "name", ["app.css", "htmx.min.js", "icon.svg", "live.js", "playground.js", "NOTICE.txt"]
)
async def test_assets_come_from_here(browser: httpx.AsyncClient, name: str) -> None:
    assert (await browser.get(f"/static/{name}")).status_code == 200


@pytest.mark.parametrize("name", ["..%2fapp.py", "x", "%2e%2e%2f%2e%2e%2fadmin.token"])
async def test_nothing_else_is_an_asset(browser: httpx.AsyncClient, name: str) -> None:
    """C053"""
    assert (await browser.get(f"/static/{name}")).status_code == 404


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[RunningServer, httpx.AsyncClient]]:
    """A whole server with a node and a failing replica, and somebody signed in."""
    models = [
        {
            "name": "org/tiny",
            "profiles": [
                {"engine": "fake", "weights": "path:/w", "devices": {"count": 1, "memory_gib": 10}}
            ],
        }
    ]
    async with running_server(tmp_path, models=models, clock=FastClock()) as server:
        devices = (device("gpu-01", 0, labels={"driver": MARKUP, "xid": "31"}),)
        server.nodes.join(inventory("gpu-01", devices=devices, hostname=MARKUP))
        with anyio.fail_after(10):
            while not server.nodes.sent:
                server.nodes.beat()
                await anyio.sleep(0.05)
        shard = next(iter(server.nodes.nodes.values())).shards
        failure = Failure(
            cause=FailureCause.BAD_OPTION, message=MARKUP, hint=MARKUP, log_tail=(MARKUP, "\x1b[2J")
        )
        for ident in list(shard):
            server.nodes.enter(ident, ShardState.BACKOFF, failure=failure, restarts=1)
        url = f"http://{server.serving.admin}"
        async with httpx.AsyncClient(base_url=f"{url}/admin", trust_env=False) as browser:
            token = (tmp_path / "admin.token").read_text().strip()
            await sign_in(browser, token, url)
            yield server, browser


async def test_what_engines_and_nodes_wrote_is_text_on_every_page(
    served: tuple[RunningServer, httpx.AsyncClient],
) -> None:
    """C057"""
    _, browser = served
    for path in [
        "",
        "/nodes",
        "/nodes/gpu-01",
        "/models",
        "/models/org/tiny",
        "/replicas",
        "/events",
    ]:
        answer = await browser.get(path)
        assert answer.status_code == 200, path
        assert "<img" not in answer.text, path
        assert "alert(1)</script>" not in answer.text, path
    assert "&lt;script&gt;" in (await browser.get("/replicas")).text
    assert "xid=31" in (await browser.get("/nodes/gpu-01")).text


async def test_a_node_is_drained_from_its_page(
    served: tuple[RunningServer, httpx.AsyncClient],
) -> None:
    server, browser = served
    origin = {"origin": f"http://{server.serving.admin}"}
    form = {"reason": "kernel update"}
    answer = await browser.post("/nodes/gpu-01/drain", data=form, headers=origin)
    assert answer.headers["location"] == "/admin/nodes/gpu-01"
    assert "draining: kernel update" in (await browser.get("/nodes/gpu-01")).text
    await browser.post("/nodes/gpu-01/uncordon", headers=origin)
    assert "draining" not in (await browser.get("/nodes/gpu-01")).text.partition("<h2>")[0]


async def test_what_is_not_there_is_a_page_that_says_so(
    served: tuple[RunningServer, httpx.AsyncClient],
) -> None:
    _, browser = served
    answer = await browser.get("/nodes/ghost")
    assert answer.status_code == 404
    assert "there is no node" in answer.text


LOG = ["plain", MARKUP, "\x1b[31mred\x1b[0m and \x07bell", "\u202egnp.exe", "tab\there"]


@pytest.fixture
def parts(parts: AdminParts) -> AdminParts:
    return replace(parts, server_log=LOG)


async def test_a_log_is_shown_without_codes_searched_and_followed(
    browser: httpx.AsyncClient,
) -> None:
    """C055, C057"""
    await sign_in(browser, "the-operator's-own")
    text = (await browser.get("/logs")).text
    assert "red and \u2407bell" in text
    assert "\\u202egnp.exe" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "<img" not in text
    assert 'hx-trigger="every 5s"' in text
    still = (await browser.get("/logs?follow=no&search=RED")).text
    assert "every 5s" not in still
    assert "<mark>red</mark> and" in still
    assert "plain" not in still
    assert "No line." in (await browser.get("/logs?search=nowhere")).text


async def test_a_log_is_downloaded_as_it_is_and_never_opened_by_the_browser(
    browser: httpx.AsyncClient,
) -> None:
    await sign_in(browser, "the-operator's-own")
    answer = await browser.get("/logs/download", params={"source": '../"x\r\nset-cookie: a=b'})
    assert answer.text.splitlines() == "\n".join(LOG).splitlines()
    assert answer.headers["content-disposition"] == (
        'attachment; filename="server-..-x-set-cookie-a-b.log"'
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"].startswith("text/plain")


async def test_what_is_under_way_and_why_it_failed_is_on_one_page(
    served: tuple[RunningServer, httpx.AsyncClient],
) -> None:
    server, browser = served
    text = (await browser.get("/progress")).text
    assert "backoff" in text
    assert "&lt;script&gt;" in text
    assert "/admin/logs?node=gpu-01&amp;source=" in text
    origin = {"origin": f"http://{server.serving.admin}"}
    answer = await browser.post(
        "/nodes/gpu-01/weights", data={"ref": "hf:org/tiny"}, headers=origin
    )
    assert answer.headers["location"] == "/admin/progress"
    shown = (await browser.get("/progress")).text
    assert "hf:org/tiny" in shown
    assert "cannot look after weights" in shown  # nodes in memory have none: the line says why


async def test_a_rollout_shows_both_versions_until_the_old_one_is_gone(tmp_path: Path) -> None:
    def catalog(weights: str) -> dict[str, object]:
        devices = {"count": 1, "memory_gib": 10}
        profile = {"engine": "fake", "weights": f"path:{weights}", "devices": devices}
        return {"models": [{"name": "tiny", "profiles": [profile]}]}

    control = {"enabled": "on"}
    async with running_server(tmp_path, control=control, clock=FastClock()) as server:
        node = server.nodes.join(inventory("gpu-01", devices=2))

        async def until(count: int) -> None:
            with anyio.fail_after(15):
                while len(node.shards) < count:
                    server.nodes.beat()
                    server.nodes.settle()
                    await anyio.sleep(0.05)

        await server.admin.post("/admin/v1/catalog", json=catalog("/old"))
        await until(1)
        assert (await server.admin.get("/admin/v1/rollouts")).json() == {"rollouts": []}
        await server.admin.post("/admin/v1/catalog", json=catalog("/new"))
        await until(2)
        (rollout,) = (await server.admin.get("/admin/v1/rollouts")).json()["rollouts"]
        assert rollout["model"] == "tiny"
        assert sum(rollout["new"].values()) == 1
        assert sum(rollout["old"].values()) == 1

        url = f"http://{server.serving.admin}"
        async with httpx.AsyncClient(base_url=f"{url}/admin", trust_env=False) as browser:
            await sign_in(browser, (tmp_path / "admin.token").read_text().strip(), url)
            text = (await browser.get("/rollouts")).text
        assert "Every replica is of its model" not in text
        assert "Back to version" in text


async def test_a_failed_rollout_says_why_and_is_tried_again_from_its_page(tmp_path: Path) -> None:
    def entry(weights: str) -> dict[str, object]:
        devices = {"count": 1, "memory_gib": 10}
        profile = {"engine": "fake", "weights": f"path:{weights}", "devices": devices}
        return {"models": [{"name": "a/tiny", "profiles": [profile]}]}

    control = {"enabled": "on"}
    async with running_server(tmp_path, control=control, clock=FastClock()) as server:
        node = server.nodes.join(inventory("gpu-01", devices=2))

        async def until(met: Callable[[], bool], *, settle: bool = True) -> None:
            with anyio.fail_after(15):
                while not met():
                    server.nodes.beat()
                    if settle:
                        server.nodes.settle()
                    await anyio.sleep(0.05)

        def weights() -> dict[str, ShardState]:
            return {item.spec.weights: item.shard.state for item in node.shards.values()}

        await server.admin.post("/admin/v1/catalog", json=entry("/old"))
        await until(lambda: weights().get("path:/old") is ShardState.READY)
        await server.admin.post("/admin/v1/catalog", json=entry("/new"))
        await until(lambda: "path:/new" in weights(), settle=False)
        (new,) = (key for key, item in node.shards.items() if item.spec.weights == "path:/new")
        failure = Failure(cause=FailureCause.DISK_FULL, message="no <b>room</b>")
        server.nodes.enter(new, ShardState.FAILED, failure=failure)
        await until(lambda: "path:/new" not in weights())

        url = f"http://{server.serving.admin}"
        async with httpx.AsyncClient(base_url=f"{url}/admin", trust_env=False) as browser:
            await sign_in(browser, (tmp_path / "admin.token").read_text().strip(), url)
            shown = (await browser.get("/rollouts")).text
            assert "no &lt;b&gt;room&lt;/b&gt;" in shown
            (form,) = re.findall(r'action="/admin(/models/[^"]+/retry)"', shown)
            answer = await browser.post(form, headers={"origin": url})
            assert (answer.status_code, answer.headers["location"]) == (303, "/admin/models/a/tiny")
            await until(lambda: weights() == {"path:/new": ShardState.READY})
            assert "model_retried" in (await browser.get("/events")).text
        again = await server.admin.post("/admin/v1/models/a/tiny/retry")
        assert again.json() == {"model": "a/tiny", "nodes": []}
        assert (await server.admin.post("/admin/v1/models/ghost/retry")).status_code == 404


async def test_the_catalog_goes_back_from_its_page(
    browser: httpx.AsyncClient, admin: httpx.AsyncClient, store: Store
) -> None:
    await admin.post("/catalog", json={"models": [{"name": "a"}]})
    await sign_in(browser, "the-operator's-own")
    answer = await browser.post("/rollback", data={"version": "0"}, headers=FORM)
    assert answer.status_code == 303
    assert store.catalog.entries() == ()
