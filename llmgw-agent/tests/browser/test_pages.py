"""Every page in light and dark: no serious finding of axe-core, no error, a picture."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("traffic")]

PAGES = {
    "overview": "",
    "nodes": "/nodes",
    "models": "/models",
    "model": "/models/huge",
    "replicas": "/replicas",
    "rollouts": "/rollouts",
    "progress": "/progress",
    "events": "/events",
    "logs": "/logs",
    "playground": "/playground",
    "keys": "/keys",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible(
    page: Page,
    root: str,
    name: str,
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
) -> None:
    page.goto(root + PAGES[name])
    if name == "overview":
        page.wait_for_selector("polyline", state="attached")
        page.wait_for_timeout(12_000)  # some readings, and the page has swapped itself twice
    accessible(page)
    picture(page, name)


def test_the_node_is_accessible(
    page: Page,
    root: str,
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
) -> None:
    page.goto(f"{root}/nodes")
    page.click("main tbody a")
    page.wait_for_selector("text=Devices")
    accessible(page)
    picture(page, "node")


def test_the_first_useful_screen_is_there_within_a_second(page: Page, root: str) -> None:
    began = time.monotonic()
    page.goto(root, wait_until="domcontentloaded")
    page.wait_for_selector("dl.figures")
    assert time.monotonic() - began < 1.0


def test_the_keyboard_alone_reaches_the_content_and_the_first_model(page: Page, root: str) -> None:
    page.goto(root)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    for _ in range(60):
        page.keyboard.press("Tab")
        if "/admin/models/" in (page.evaluate("document.activeElement.href ?? ''")):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Model')")
