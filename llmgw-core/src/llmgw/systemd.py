"""What a process tells systemd: that it serves, and again and again that its event loop goes round.

The protocol of sd_notify(3): datagrams to the socket that `NOTIFY_SOCKET` names. Without one, that
is without systemd or without `Type=notify` in the unit, nothing is said and nothing costs.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable, MutableMapping

from llmgw.clock import Clock
from llmgw.logs import get_logger

log = get_logger(__name__)

_SIGNS_PER_LIMIT = 4  # so that a loop that is late once or twice is not taken for dead


class Supervision:
    """Whoever supervises this process: systemd, or nobody."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes out of `environment` what is meant for this process alone.

        Children that had it would be heard as strangers, once each quarter of a minute.
        """
        self._address = environment.pop("NOTIFY_SOCKET", "")
        limit_us = environment.pop("WATCHDOG_USEC", "")
        meant = environment.pop("WATCHDOG_PID", str(os.getpid()))
        is_watched = self._address and limit_us.isdigit() and meant == str(os.getpid())
        self._limit_s = int(limit_us) / 1e6 if is_watched else None

    async def keep_alive(self, clock: Clock, *, is_well: Callable[[], bool] = lambda: True) -> None:
        """Say that the process serves, and give signs of life until cancelled.

        is_well: no sign is given while it says no; it must not wait.
        """
        self._say("READY=1")
        if self._limit_s is None:
            return
        # The watchdog's signal then leaves in the journal where every thread was held.
        faulthandler.enable(sys.__stderr__ or 2)
        was_well = True
        while True:
            if is_well():
                self._say("WATCHDOG=1")
                was_well = True
            elif was_well:
                log.error("no sign of life is given", ended_in_s=self._limit_s)
                was_well = False
            await clock.sleep(self._limit_s / _SIGNS_PER_LIMIT)

    def _say(self, word: str) -> None:
        if not self._address:
            return
        # A leading @ is systemd's way to write the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(word.encode(), address)
        except OSError as error:  # the next sign may get through
            log.debug("systemd is not told", word=word, reason=str(error))


def can_start_thread() -> bool:
    """Whether the kernel grants this process one more thread, which ends at once."""
    try:
        threading.Thread(target=lambda: None, daemon=True).start()
    except RuntimeError:
        return False
    return True
