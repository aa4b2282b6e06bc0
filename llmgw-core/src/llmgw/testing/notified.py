"""A socket where systemd would listen, and what was heard there."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Self


class NotifySocket:
    """Hears a process that is told of it by `env`."""

    def __init__(self, path: Path, *, watchdog_s: float | None = None) -> None:
        """watchdog_s: signs of life are asked for as a unit with this `WatchdogSec` does."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.env = {"NOTIFY_SOCKET": str(path)}
        if watchdog_s is not None:
            self.env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))

    def heard(self) -> list[str]:
        """Return what was said since the last call."""
        said = []
        while True:
            try:
                said.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
