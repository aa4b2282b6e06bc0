"""What operators come for, each from sign-in to done, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from llmgw.testing.site import Site, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


@pytest.fixture(params=["light"])
def scheme(request: pytest.FixtureRequest) -> str:
    scheme: str = request.param
    return scheme


@pytest.fixture
def node(site: Site) -> str:
    name: str = site.ctl("nodes")["nodes"][0]["id"]
    return name


def test_why_a_model_does_not_run(page: Page, root: str) -> None:
    page.goto(root)
    page.click("main table a:has-text('huge')")
    page.wait_for_selector("h2:has-text('Why not more')")
    assert "too_few_devices" in page.inner_text(".tree")


def test_the_log_of_a_failing_engine(
    page: Page, root: str, site: Site, picture: Callable[[Page, str], None]
) -> None:
    """C055, C057"""

    def has_failed() -> bool:
        replicas = site.ctl("replicas")["replicas"]
        return any(shard["log_tail"] for item in replicas for shard in item["shards"])

    wait_for("the engine has failed", has_failed, 60)
    page.goto(f"{root}/progress")
    page.click("tr:has-text('noisy') a >> nth=0")
    page.wait_for_selector("pre.log")
    page.wait_for_function("document.querySelector('pre.log').innerText.includes('needle')")
    log = page.inner_text("pre.log")
    assert '<img src=x onerror="document.title=1">' in log
    assert '</pre><script>document.title="owned"</script>' in log
    assert "odd \ufffd\ufffd bytes  end" in log
    assert "ok: red \u2407 " in log
    picture(page, "log")

    page.fill("input[name=search]", "NEEDLE")
    page.press("input[name=search]", "Enter")
    page.wait_for_selector("mark:has-text('needle')")
    assert "onerror" not in page.inner_text("pre.log")
    with page.expect_download() as started:
        page.click("text=Download")
    saved = started.value.path().read_bytes()
    assert b"needle" in saved
    assert "owned" not in page.title()


def test_a_log_follows_every_five_seconds_and_keeps_the_readers_place(
    page: Page, root: str
) -> None:
    page.goto(f"{root}/logs")
    with page.expect_response(lambda answer: "/admin/logs" in answer.url, timeout=8_000):
        pass
    page.select_option("select[name=follow]", "no")
    page.wait_for_url("**follow=no**")
    page.wait_for_selector("#live:not([hx-trigger])")


def test_a_node_is_drained_and_used_again(page: Page, root: str, node: str) -> None:
    page.goto(f"{root}/nodes/{node}")
    page.fill("input[name=reason]", "kernel update")
    page.click("button:has-text('Drain')")
    page.wait_for_selector("text=draining: kernel update")
    page.click("button:has-text('Use it again')")
    page.wait_for_selector("button:has-text('Drain')")
    page.goto(f"{root}/events")
    assert "kernel update" in page.inner_text("main")


def test_weights_and_engines_are_asked_for_and_watched(
    page: Page, root: str, node: str, site: Site, accessible: Callable[[Page], None]
) -> None:
    page.goto(f"{root}/nodes/{node}")
    page.fill("input[name=ref]", f"path:{site.home / 'tiny.gguf'}")
    page.click("button:has-text('Fetch weights')")
    page.wait_for_selector("tr:has-text('tiny.gguf'):has-text('done')", timeout=15_000)
    page.goto(f"{root}/nodes/{node}")
    page.fill("input[name=engine]", "llamacpp")
    page.fill("input[name=version]", "0.0.0")
    page.click("button:has-text('Install engine')")
    page.wait_for_selector("tr:has-text('llamacpp 0.0.0')")
    page.wait_for_selector("tr:has-text('llamacpp 0.0.0'):has-text('failed')", timeout=30_000)
    accessible(page)


def test_a_key_is_made_shown_once_and_revoked(page: Page, root: str) -> None:
    page.goto(f"{root}/keys")
    page.fill("input[name=name]", "<b onmouseover=alert(1)>ci</b>")
    page.click("button:has-text('Make a key')")
    secret = page.inner_text("pre")
    assert secret.startswith("llmgw_")
    page.click("text=Back to the keys")
    assert secret not in page.content()
    assert "<b onmouseover=alert(1)>ci</b>" in page.inner_text("main")
    page.click("summary:has-text('Revoke')")
    page.click("button:has-text('End it for good')")
    page.wait_for_selector("text=ended")


def test_a_chat_in_the_playground(
    page: Page, root: str, site: Site, picture: Callable[[Page, str], None]
) -> None:
    wait_for("tiny answers", lambda: site.is_ready("tiny"), 60)
    page.goto(f"{root}/playground")
    page.select_option("select[name=model]", "tiny")
    page.fill("textarea", "Which city is the capital of France?")
    page.click("button:has-text('Send')")
    page.wait_for_selector("#figures:has-text('tokens/s')", timeout=30_000)
    assert "first token after" in page.inner_text("#figures")
    page.wait_for_selector("button:has-text('Send'):not([disabled])", timeout=60_000)
    picture(page, "chat")


def test_signing_out_ends_it(page: Page, root: str) -> None:
    page.click("text=Sign out")
    page.wait_for_selector("input[name=token]")
    page.goto(f"{root}/keys")
    page.wait_for_selector("input[name=token]")
