"""The page of logs keeps itself up to date."""

from __future__ import annotations

from pathlib import Path

import llmgw.admin

TEMPLATES = Path(llmgw.admin.__file__).parent / "templates"


def test_the_page_of_logs_is_read_again_every_five_seconds() -> None:
    assert "parts.live()" in (TEMPLATES / "logs.html").read_text()
    assert 'hx-trigger="every 5s"' in (TEMPLATES / "parts.html").read_text()
