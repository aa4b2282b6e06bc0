"""Gives this node's whole weights to nodes of the same cluster. A shell.

Who may have what is for the servers to say: without their word a node of the cluster gets
nothing either. Files are read and sent on threads, one a connection, so that no disk and no
cipher holds up the event loop.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from llmgw.domain.ids import NodeId
from llmgw.errors import TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.identity.peers import NotAPeer, PeerTls
from llmgw_agent.node.weights.admissions import Admissions
from llmgw_agent.node.weights.below import open_below
from llmgw_agent.node.weights.exchange import (
    Answer,
    NotUnderstood,
    Problem,
    Question,
    line_of,
    read_line,
)
from llmgw_agent.node.weights.manifest import Manifest
from llmgw_agent.node.weights.pace import Pace

log = get_logger(__name__)

_READ_BYTES = 256 << 10
_WORD_LIMIT_S = 2.0  # that a server's word may be slower than the node that it is about
_SILENCE_S = 60.0
_BACKLOG = 64
_PAUSE_S = 0.5


class Shared:
    """Weights that lie whole in the cache, with what they consist of."""

    def __init__(self, data: Path, listing: bytes, manifest: Manifest) -> None:
        """listing: the manifest as it is sent."""
        self.data = data
        self.listing = listing
        self._sizes = {file.name: file.size for file in manifest.files}

    def has(self, question: Question) -> bool:
        """Whether there is a file with as many bytes there."""
        size = self._sizes.get(question.file or "")
        return (
            size is not None
            and question.start >= 0
            and question.size > 0
            and question.start + question.size <= size
        )


class Sharing:
    """Listens where other nodes get weights."""

    def __init__(
        self,
        *,
        tls: PeerTls,
        admissions: Admissions,
        find: Callable[[str], Shared | None],
        address: str,
        port: int,
        connections: int,
        bytes_per_s: float,
    ) -> None:
        """find: weights by the digest of their manifest; called on a thread.

        port: another one is taken if somebody has it already. connections: at a time.
        """
        self._tls = tls
        self._admissions = admissions
        self._find = find
        self._address = address
        self._wanted_port = port
        self._limit = connections
        # More threads than connections that are served: who comes in vain is told so.
        self._threads = anyio.CapacityLimiter(2 * connections)
        self._pace = Pace(bytes_per_s)
        self._serving = 0
        self.port: int | None = None  #: None: it does not listen

    def admit(self, node: NodeId, manifest: str, *, for_s: float) -> None:
        """Let a node have the weights of this manifest, for so long from now on."""
        self._admissions.admit(node, manifest, for_s=for_s)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; connections end with it. Without a port, none is served."""
        try:
            listener = _listen(self._address, self._wanted_port)
        except OSError as error:
            log.warning(
                "weights are not given to other nodes",
                address=self._address,
                reason=error.strerror or str(error),
            )
            task_status.started()
            return
        with closing(listener):
            self.port = listener.getsockname()[1]
            log.debug("weights are given to other nodes", address=self._address, port=self.port)
            task_status.started()
            try:
                async with anyio.create_task_group() as group:
                    while True:
                        await anyio.wait_readable(listener)
                        try:
                            group.start_soon(self._serve, listener.accept()[0])
                        except OSError:  # gone again; or no descriptor is left, which may last
                            await anyio.sleep(_PAUSE_S)
            finally:
                self.port = None

    async def _serve(self, plain: socket.socket) -> None:
        if self._threads.available_tokens < 1:
            plain.close()
            return
        plain.setblocking(True)
        is_one_too_many = self._serving >= self._limit
        self._serving += 1
        try:
            await anyio.to_thread.run_sync(
                self._converse,
                plain,
                is_one_too_many,
                abandon_on_cancel=True,
                limiter=self._threads,
            )
        finally:
            self._serving -= 1
            # Ends the thread's reads and writes, if it still is at one.
            with suppress(OSError):
                plain.shutdown(socket.SHUT_RDWR)
            plain.close()

    def _converse(self, plain: socket.socket, is_one_too_many: bool) -> None:
        try:
            # A duplicate, since the original is closed by whoever cancels.
            connection, node = self._tls.answer(plain.dup(), silence_s=_SILENCE_S)
        except NotAPeer as error:
            log.warning("stranger asked for weights", reason=str(error))
            return
        except (OSError, TransientError) as error:  # TLS itself refuses most of them
            log.debug("stranger asked for weights", reason=str(error))
            return
        try:
            with connection, connection.makefile("rb") as said:
                while (question := read_line(said, Question)) is not None:
                    problem = (
                        Problem.BUSY
                        if is_one_too_many
                        else self._answer(connection, node, question)
                    )
                    if problem is not None:
                        connection.sendall(line_of(Answer(problem=problem)))
                        return
        except (OSError, NotUnderstood) as error:
            log.debug("giving weights ended", node=node, reason=str(error))

    def _answer(
        self, connection: ssl.SSLSocket, node: NodeId, question: Question
    ) -> Problem | None:
        """Give what is asked for; return why not."""
        if not self._admissions.wait_admitted(node, question.manifest, _WORD_LIMIT_S):
            return Problem.NOT_ADMITTED
        shared = self._find(question.manifest)
        if shared is None:
            return Problem.GONE
        if question.file is None:
            connection.sendall(line_of(Answer(size=len(shared.listing))))
            connection.sendall(shared.listing)
            return None
        if not shared.has(question):
            return Problem.WRONG
        try:
            file = os.fdopen(open_below(shared.data, question.file.split("/")), "rb", buffering=0)
        except OSError:
            return Problem.GONE
        with file:
            self._send(connection, file, question)
        return None

    def _send(self, connection: ssl.SSLSocket, file: IO[bytes], question: Question) -> None:
        connection.sendall(line_of(Answer(size=question.size)))
        file.seek(question.start)
        left = question.size
        while left:
            data = file.read(min(left, _READ_BYTES))
            if not data:
                # Too short for what was promised: nothing that could follow would be right.
                raise OSError(errno.EIO, f"{question.file} has become shorter")
            self._pace.wait(len(data))
            connection.sendall(data)
            left -= len(data)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
        # Another agent of this machine, most likely. Servers tell everybody which port it is.
        listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
