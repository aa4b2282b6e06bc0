"""What a process keeps of its own log."""

from __future__ import annotations

import logging

from llmgw.logs import LastLines


def test_the_last_two_thousand_lines_are_kept_in_memory() -> None:
    kept = LastLines()
    logger = logging.Logger("test")
    logger.addHandler(kept)
    for number in range(2500):
        logger.info("line %d", number)
    assert len(kept.lines) == 2000
    assert "line 500" in kept.lines[0]
    assert "line 2499" in kept.lines[-1]
