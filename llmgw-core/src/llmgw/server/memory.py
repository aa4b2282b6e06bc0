"""Keeps a process that runs for months as small as what it holds."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable

import anyio

EVERY_S = 30.0
#: About a hundred thousand values.
LONG_COLLECTION_S = 0.01


def settle() -> None:
    """What the start made stays for good: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    give_back()


def set_aside_what_stays(*, long_s: float = LONG_COLLECTION_S) -> None:
    """Let no full collection of garbage hold up the event loop for longer than once.

    What a large fleet reports lives as long as the fleet does, and a collection that goes through
    all of it takes 50 ms and more. So what has survived one that took long is not looked at again.
    It still goes when nothing refers to it; only cycles among it that end later stay, and each time
    takes tens of megabytes of new values, so that those are few.
    """
    began = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < 2:
            return
        if phase == "start":
            began = time.perf_counter()
        elif time.perf_counter() - began > long_s:
            gc.freeze()

    gc.callbacks.append(watch)


async def give_back_often() -> None:
    """Give back what is free, until cancelled.

    Of its own accord glibc gives back only what lies behind everything else, and never what lies
    between: each crowd of clients that comes and goes would leave the process a little larger.
    """
    while True:
        await anyio.sleep(EVERY_S)
        give_back()


def give_back() -> None:
    """Return free memory to the system, in a millisecond; nothing happens where that is unknown."""
    if _trim is not None:
        _trim(0)


def _malloc_trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found  # None: another libc


_trim = _malloc_trim()
