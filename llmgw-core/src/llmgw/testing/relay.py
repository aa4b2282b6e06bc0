"""A relay between two ends of a connection that delays, cuts or refuses, as told at run time.

Stands in for a slow or absent server behind a socket file, such as PostgreSQL's.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class SocketRelay:
    """Relays one socket file to another, in a thread with a loop of its own."""

    def __init__(self, listen: Path, target: Path) -> None:
        self.listen = listen  #: what clients connect to
        self._target = target
        self._delay_s = 0.0
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def slow(self, delay_s: float) -> None:
        """Hold everything that the target says back for so long. 0: no more."""
        self._delay_s = delay_s

    def cut(self) -> None:
        """Break every connection and refuse new ones until `heal`."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._break)

    def heal(self) -> None:
        self._is_cut = False

    def move(self, target: Path) -> None:
        """Lead new connections to another socket file, as an address that moves does."""
        self._target = target

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _break(self) -> None:
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_unix_server(self._serve, self.listen)
        self.listen.chmod(0o777)
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._break()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        ours, theirs = await asyncio.open_unix_connection(self._target)
        self._open |= {writer, theirs}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, theirs))
                while data := await ours.read(65536):
                    if self._delay_s:
                        await asyncio.sleep(self._delay_s)
                    writer.write(data)
                writer.close()
        except* OSError:
            pass  # either end has left, which is the end of both
        finally:
            self._open -= {writer, theirs}
            theirs.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
