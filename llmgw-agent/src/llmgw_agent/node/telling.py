"""Reports of threads, told on the event loop."""

from __future__ import annotations

import time

import anyio.from_thread
import anyio.lowlevel

from llmgw_agent.node.host import Report

_EVERY_S = 0.2


def on_loop(report: Report) -> Report:
    """Return a report for any thread, which calls `report` on the loop that this is called on.

    A few times a second, and at the end: a thread that downloads must not wait for the loop at
    each piece.
    """
    told_at = float("-inf")
    # Not looked up in the thread: libraries that download have threads of their own, which no
    # loop has started.
    loop = anyio.lowlevel.current_token()

    def tell(done: float, total: float | None) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= _EVERY_S or done == total:
            told_at = now
            anyio.from_thread.run_sync(report, done, total, token=loop)

    return tell
