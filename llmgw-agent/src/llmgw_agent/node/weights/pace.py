"""Keeps what several threads send below a rate, so that engines keep disk and network."""

from __future__ import annotations

import threading
import time

_BURST_S = 0.25  # of unused time that may be made up for


class Pace:
    """Bytes a second, of all threads together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def wait(self, size: int) -> None:
        """Block until `size` more bytes keep the rate."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _BURST_S) + size / self._rate
            left_s = self._free_at - now
        if left_s > 0:
            time.sleep(left_s)
