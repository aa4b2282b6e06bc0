"""Keeps a process that runs for months as small as what it holds."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import anyio

EVERY_S = 30.0


def settle() -> None:
    """What the start made stays for good: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    give_back()


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
