"""The page in a real Chromium: what an HTTP client cannot find, such as `Origin: null`.

Needs Debian's chromium and the package playwright; skipped without them.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.testing.clock import FastClock
from llmgw.testing.cluster import RunningServer, running_server
from llmgw.testing.values import inventory

api = pytest.importorskip("playwright.async_api")
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.timeout(60),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
MODELS = [
    {
        "name": name,
        "profiles": [
            {
                "engine": "fake",
                "weights": "path:/w",
                "devices": {"count": devices, "memory_gib": 10},
            }
        ],
    }
    for name, devices in (("broken", 1), ("huge", 8))
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    """A server whose one replica fails with markup in its words."""
    async with running_server(tmp_path, models=MODELS, clock=FastClock()) as running:
        node = running.nodes.join(inventory("gpu-01", devices=2, hostname=MARKUP))
        with anyio.fail_after(10):
            while not node.shards:
                running.nodes.beat()
                await anyio.sleep(0.05)
        failure = Failure(cause=FailureCause.UNKNOWN, message=MARKUP, log_tail=(MARKUP,))
        for shard in list(node.shards):
            running.nodes.enter(shard, ShardState.BACKOFF, failure=failure, restarts=1)
        yield running


async def test_an_operator_signs_in_finds_out_why_drains_a_node_and_makes_a_key(
    server: RunningServer,
) -> None:
    root = f"http://{server.serving.admin}"
    complaints: list[str] = []
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if "Policy" in message.text else None,
        )

        await page.goto(f"{root}/")
        await page.fill("input[name=token]", (server.state_dir / "admin.token").read_text().strip())
        await page.click("text=Sign in >> nth=-1")
        await page.wait_for_selector("text=Needs a look")
        cookies = await page.context.cookies()
        assert [cookie["httpOnly"] for cookie in cookies] == [True]

        await page.click("a:has-text('huge')")
        await page.wait_for_selector("text=too_few_devices")
        await page.goto(f"{root}/admin/replicas")
        await page.click("text=Last lines")
        assert MARKUP in await page.inner_text("pre")

        await page.goto(f"{root}/admin/nodes/gpu-01")
        await page.fill("input[name=reason]", "kernel update")
        await page.click("button:has-text('Drain')")
        await page.wait_for_selector("text=draining: kernel update")
        await page.wait_for_timeout(5500)  # the page fetches itself once
        assert "owned" not in await page.title()

        await page.goto(f"{root}/admin/keys")
        await page.fill("input[name=name]", MARKUP)
        await page.click("button:has-text('Make a key')")
        assert (await page.inner_text("pre")).startswith("llmgw_")
        await page.click("text=Back to the keys")
        assert "owned" not in await page.title()
        await page.click("text=Sign out")
        await page.wait_for_selector("input[name=token]")
        await browser.close()
    assert complaints == []
