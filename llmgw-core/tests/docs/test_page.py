"""The guide to the cluster page knows every page that there is."""

from __future__ import annotations

import re
from pathlib import Path

from llmgw.admin.pages.views import VIEWS
from llmgw.store.tokens import Role

GUIDE = (Path(__file__).parents[3] / "docs" / "page.md").read_text()


def test_every_page_of_the_menu_is_described_in_its_order() -> None:
    rows = re.findall(r"^\| ([A-Z][\w ]+) \| (.*?) \|", GUIDE, re.MULTILINE)
    pages = [view for view in VIEWS if view.in_menu]
    assert [title for title, _ in rows] == [view.title for view in pages]
    for (title, shows), view in zip(rows, pages, strict=True):
        assert ("for `operator` only" in shows) == (view.role is Role.OPERATOR), title
