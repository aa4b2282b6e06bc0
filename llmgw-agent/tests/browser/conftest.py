"""A whole `llmgw up` and a real Chromium that is signed in.

Needs Debian's chromium, playwright and axe-core (`nox -s browser` brings the last two); where
they are missing nothing here is collected. `LLMGW_SCREENSHOTS` names a folder for pictures.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from llmgw.testing.site import Site, wait_for
from llmgw.testing.tiny_gguf import write_tiny_gguf

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
AXE = os.environ.get("LLMGW_AXE")
if importlib.util.find_spec("playwright") is None or CHROMIUM is None or AXE is None:
    collect_ignore_glob = ["test_*.py"]

# What an engine may say before it ends: markup, a terminal's codes, bytes that are no text.
NOISY = r"""#!/bin/sh
printf 'ok: \033[31mred\033[0m \007 <img src=x onerror="document.title=1">\n' >&2
printf '</pre><script>document.title="owned"</script>\n' >&2
printf 'odd \377\376 bytes \033]0;owned\007 end\n' >&2
echo 'error: the needle in this log' >&2
sleep 1
exit 3
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`llmgw up` with one model that serves, one whose engine ends, one that fits nowhere."""
    made = Site(tmp_path_factory.mktemp("site"))
    tiny, noisy = made.home / "tiny.gguf", made.home / "noisy"
    write_tiny_gguf(tiny)
    noisy.write_text(NOISY)
    noisy.chmod(0o755)
    catalog = made.home / "llmgw.yaml"
    catalog.write_text(yaml.safe_dump(_catalog(str(tiny), str(noisy))))
    made.up(str(catalog))
    try:
        wait_for("tiny answers", lambda: made.is_ready("tiny"), 90)
        yield made
    finally:
        made.close()


def _catalog(tiny: str, noisy: str) -> dict[str, Any]:
    def model(name: str, **profile: Any) -> dict[str, Any]:
        # Slots of their own: what fills a shared context ends every stream of the engine.
        options = {"ctx_size": 2048, "parallel": 4, "threads": 1}
        first = {"engine": "llamacpp", "weights": f"path:{tiny}", "options": options}
        return {"name": name, "profiles": [{**first, **profile}]}

    return {
        "models": [
            model("tiny"),
            model("noisy", command=[noisy]),
            model("huge", devices={"count": 8, "memory_gib": 80}),
        ]
    }


@pytest.fixture(scope="session")
def traffic(site: Site) -> Iterator[None]:
    """Somebody who keeps asking, so that the plots have something to show."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.3):
            site.ask("tiny", max_tokens=24, stream=True)

    asking = threading.Thread(target=ask)
    asking.start()
    yield
    stop.set()
    asking.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in most build containers, has no sandbox of Chromium's.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def root(site: Site) -> str:
    return f"http://127.0.0.1:{site.admin_port}/admin"


@pytest.fixture
def token(site: Site) -> str:
    return next(site.home.rglob("admin.token")).read_text().strip()


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    scheme: str = request.param
    return scheme


@pytest.fixture
def page(browser: Browser, root: str, token: str, scheme: str) -> Iterator[Page]:
    """A page that is signed in; errors of scripts and breaches of the policy fail the test."""
    colours: Any = scheme
    context = browser.new_context(color_scheme=colours, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on(
        "response",
        lambda got: complaints.append(f"{got.status} {got.url}") if got.status >= 400 else None,
    )
    page.goto(f"{root}/sign-in")
    page.fill("input[name=token]", token)
    page.click("main button")
    page.wait_for_selector("nav[aria-label=Pages]")
    yield page
    context.close()
    assert complaints == []


class Picture:
    """Takes pictures where they are asked for, one per scheme."""

    def __init__(self, scheme: str) -> None:
        folder = os.environ.get("LLMGW_SCREENSHOTS")
        self._folder = Path(folder) if folder else None
        self._suffix = "" if scheme == "light" else f"-{scheme}"

    def __call__(self, page: Page, name: str) -> None:
        if self._folder is not None:
            page.screenshot(path=self._folder / f"{name}{self._suffix}.png")


@pytest.fixture
def picture(scheme: str) -> Picture:
    return Picture(scheme)


class Accessible:
    """Asks axe-core, whose rules follow WCAG 2."""

    def __init__(self) -> None:
        self._source = Path(AXE or "").read_text()

    def __call__(self, page: Page) -> None:
        page.evaluate(self._source)
        findings = page.evaluate("axe.run().then((result) => result.violations)")
        assert [
            (item["id"], item["nodes"][0]["html"], item["nodes"][0]["failureSummary"])
            for item in findings
            if item["impact"] in ("serious", "critical")
        ] == []


@pytest.fixture(scope="session")
def accessible() -> Accessible:
    return Accessible()
