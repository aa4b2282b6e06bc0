"""Answers that agents bring by calls of their own, and who waits for them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from llmgw.domain.ids import NodeId
from llmgw_agent.wire.frames import BulkFrame

# Frames between the call and its reader; beyond that the agent waits, by gRPC's flow control.
_BUFFERED = 4


class Answer:
    """One answer: the call that brings it writes, whoever asked reads."""

    def __init__(self, node: NodeId) -> None:
        # Not to be guessed: over a socket file it is all that ties a call to its question.
        self.id = secrets.token_hex(16)
        self.node = node
        self.abandoned = anyio.Event()  #: nobody reads any more
        streams = anyio.create_memory_object_stream[BulkFrame](_BUFFERED)
        self.incoming: MemoryObjectSendStream[BulkFrame] = streams[0]
        self.frames: MemoryObjectReceiveStream[BulkFrame] = streams[1]

    def close(self) -> None:
        self.abandoned.set()
        self.incoming.close()
        self.frames.close()


class Answers:
    """Those that are expected, each claimed by at most one call."""

    def __init__(self) -> None:
        self._expected: dict[str, Answer] = {}

    @contextmanager
    def expect(self, node: NodeId) -> Iterator[Answer]:
        """Wait for one answer of this node for as long as the block lasts."""
        answer = Answer(node)
        self._expected[answer.id] = answer
        try:
            yield answer
        finally:
            self._expected.pop(answer.id, None)
            answer.close()

    def claim(self, id: str, node: NodeId | None) -> Answer | None:  # noqa: A002 # as everywhere
        """Return the answer that a call brings; None if nobody expects it (any more).

        node: who the certificate says is calling; None where there is no certificate.
        """
        answer = self._expected.get(id)
        if answer is None or node not in (None, answer.node):
            return None
        return self._expected.pop(id)
