"""Fetches the pieces of one manifest from several nodes at a time. Runs on threads.

    data/<name>.peers     pieces at their places, until all of them are right

What is there of an earlier try is kept where its hash is right, whoever it came from.
"""

from __future__ import annotations

import hashlib
import os
import queue
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from llmgw.contracts.weights import FetchContext
from llmgw.domain.ids import NodeId
from llmgw.errors import LlmgwError
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.identity.peers import NotAPeer
from llmgw_agent.node.weights.exchange import Answer, NotUnderstood, Question, line_of, read_line
from llmgw_agent.node.weights.faults import Corrupt
from llmgw_agent.node.weights.manifest import MANIFEST_LIMIT, Manifest, Piece, pieces_of
from llmgw_agent.node.weights.verify import CHUNK_BYTES, IS_FULL, full_disk
from llmgw_agent.wire.frames import WeightsPeer

CONNECTIONS = 4  #: at a time, of all peers together
PARTIAL = ".peers"

_TELL_S = 0.2

Dial = Callable[[WeightsPeer], ssl.SSLSocket]
"""Raises OSError, NotAPeer or TransientError."""


class Refused(Exception):
    """A peer does not give what it is asked for; the message is its code."""


class Transfer:
    """What is still to come, and what has come."""

    def __init__(self, manifest: Manifest, *, digest: str, context: FetchContext) -> None:
        """Take stock of what is there. Blocks for as long as reading it takes."""
        self._manifest = manifest
        self._digest = digest
        self._context = context
        self._total = sum(file.size for file in manifest.files)
        self._todo: deque[Piece] = deque()
        self._open = 0  #: pieces that are not right yet
        self._done = 0  #: bytes that are
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._connections: set[ssl.SSLSocket] = set()
        self._complaints: dict[NodeId, str] = {}  #: why a peer was left
        self.liars: set[NodeId] = set()  #: peers that sent other bytes than they should
        for file in manifest.files:
            path = context.folder / file.name
            if path.is_file() and not path.is_symlink():
                path.replace(_partial(path))  # whole once, by whatever try
        for piece in pieces_of(manifest):
            if self._is_here(piece):
                self._done += piece.size
            else:
                self._todo.append(piece)
        self._open = len(self._todo)

    @property
    def missing_bytes(self) -> int:
        return self._total - self._done

    @property
    def is_complete(self) -> bool:
        return self._open == 0

    def take_complaints(self) -> list[tuple[NodeId, str]]:
        """Return which peers were left and why, since the last time."""
        with self._lock:
            taken, self._complaints = sorted(self._complaints.items()), {}
        return taken

    def run(self, peers: Sequence[WeightsPeer], dial: Dial) -> None:
        """Fetch until all is here or no peer is left. Raises what `context.report` raises, DiskFull
        and OSError of this node's own disk."""
        self._stopped.clear()
        ends: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        # Two connections to one peer are quicker than one: a cipher fills a core.
        lines = [peers[number % len(peers)] for number in range(min(CONNECTIONS, 2 * len(peers)))]
        threads = [
            threading.Thread(
                target=self._work, args=(peer, dial, ends), name=f"weights-{peer.node}", daemon=True
            )
            for peer in lines
        ]
        for thread in threads:
            thread.start()
        try:
            self._wait(len(threads), ends)
        finally:
            self._stop()
            for thread in threads:
                thread.join()

    def finish(self) -> None:
        """Give every file its name. Raises OSError."""
        for file in self._manifest.files:
            path = self._context.folder / file.name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = _partial(path)
            with partial.open("ab") as content:
                content.truncate(file.size)
                os.fsync(content.fileno())
            partial.replace(path)

    def abandon(self) -> None:
        """Leave what is whole for the source to find, and nothing else. Raises OSError."""
        wanted = {piece.file for piece in self._todo}
        for file in self._manifest.files:
            path = self._context.folder / file.name
            if file.name in wanted:
                _partial(path).unlink(missing_ok=True)
            elif _partial(path).exists():
                _partial(path).replace(path)

    def _wait(self, working: int, ends: queue.SimpleQueue[Exception | None]) -> None:
        while working:
            with suppress(queue.Empty):
                problem = ends.get(timeout=_TELL_S)
                working -= 1
                if problem is not None:
                    raise problem
            self._context.report(self._done, self._total)

    def _stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    # Not SSLSocket's own, which would pull the cipher from under the reader.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _work(
        self, peer: WeightsPeer, dial: Dial, ends: queue.SimpleQueue[Exception | None]
    ) -> None:
        """Fetch pieces from one peer while there are any, and while it gives them."""
        problem: Exception | None = None
        try:
            with self._connected(peer, dial) as (connection, said):
                while not self._stopped.is_set() and (piece := self._next()) is not None:
                    is_right = False
                    try:
                        is_right = self._fetch(piece, connection, said)
                    finally:
                        self._settle(piece, is_right=is_right)
                    if not is_right:
                        self.liars.add(peer.node)
                        raise Corrupt(f"other bytes of {piece.file} than they should be")
        except _OwnDisk as error:
            problem = error.reason
        except (OSError, NotAPeer, NotUnderstood, Refused, LlmgwError) as error:
            self._complaints[peer.node] = str(error) or type(error).__name__
        finally:
            ends.put(problem)

    @contextmanager
    def _connected(
        self, peer: WeightsPeer, dial: Dial
    ) -> Iterator[tuple[ssl.SSLSocket, IO[bytes]]]:
        with dial(peer) as connection, connection.makefile("rb") as said:
            with self._lock:
                self._connections.add(connection)
            try:
                yield connection, said
            finally:
                with self._lock:
                    self._connections.discard(connection)

    def _next(self) -> Piece | None:
        with self._lock:
            return self._todo.popleft() if self._todo else None

    def _settle(self, piece: Piece, *, is_right: bool) -> None:
        with self._lock:
            if is_right:
                self._open -= 1
                self._done += piece.size
            else:
                self._todo.appendleft(piece)

    def _fetch(self, piece: Piece, connection: ssl.SSLSocket, said: IO[bytes]) -> bool:
        """Put one piece in its place; return whether it is the right one."""
        ask(
            connection,
            said,
            Question(manifest=self._digest, file=piece.file, start=piece.start, size=piece.size),
            limit=piece.size,
        )
        found, buffer = hashlib.sha256(), memoryview(bytearray(min(piece.size, CHUNK_BYTES)))
        with _writing(_partial(self._context.folder / piece.file)) as file:
            at, end = piece.start, piece.start + piece.size
            while at < end:
                part = buffer[: min(len(buffer), end - at)]
                _read_all(said, part)
                found.update(part)
                with _own_disk(file, end - at):
                    os.pwrite(file, part, at)
                at += len(part)
        return found.hexdigest() == piece.sha256

    def _is_here(self, piece: Piece) -> bool:
        path = self._context.folder / piece.file
        try:
            with _partial(path).open("rb") as file:
                file.seek(piece.start)
                found = hashlib.sha256(file.read(piece.size)).hexdigest()
        except FileNotFoundError:
            return False
        self._context.report(self._done, self._total)
        return found == piece.sha256


def clear_partials(folder: Path) -> None:
    """Remove what tries have left that were not the one to succeed."""
    for path in folder.rglob(f"*{PARTIAL}"):
        path.unlink()


def fetch_listing(peer: WeightsPeer, dial: Dial, digest: str) -> bytes:
    """Return the manifest as a peer has it. Raises OSError, NotAPeer, NotUnderstood, Refused."""
    with dial(peer) as connection, connection.makefile("rb") as said:
        size = ask(connection, said, Question(manifest=digest), limit=MANIFEST_LIMIT)
        listing = bytearray(size)
        _read_all(said, memoryview(listing))
        return bytes(listing)


def ask(connection: ssl.SSLSocket, said: IO[bytes], question: Question, *, limit: int) -> int:
    """Ask, and return how many bytes follow: for a file as many as were asked for.

    Raises Refused, NotUnderstood and OSError.
    """
    connection.sendall(line_of(question))
    answer = read_line(said, Answer)
    if answer is None:
        raise ConnectionResetError("it has closed the connection")
    if answer.problem is not None:
        raise Refused(answer.problem)
    if not 0 < answer.size <= limit or (question.file and answer.size != question.size):
        raise NotUnderstood(f"{answer.size} bytes where {question.size or limit} were asked for")
    return answer.size


class _OwnDisk(Exception):
    """It is this node's disk that fails, which no other peer would mend."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


@contextmanager
def _writing(path: Path) -> Iterator[int]:
    with _own_disk(None, 0):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _own_disk(file: int | None, missing: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in IS_FULL and file is not None:
            where = Path(f"/proc/self/fd/{file}").readlink()
            raise _OwnDisk(DiskFull(full_disk(where, missing), retry_after_s=60.0)) from error
        raise _OwnDisk(error) from error


def _read_all(said: IO[bytes], into: memoryview) -> None:
    at = 0
    while at < len(into):
        count = said.readinto(into[at:])  # type: ignore[attr-defined] # a BufferedReader
        if not count:
            raise ConnectionResetError("it left in the middle")
        at += count


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)
