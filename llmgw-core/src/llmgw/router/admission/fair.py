"""A waiting line that is fair between keys. A store; it knows no clock."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    """What stands in the line."""

    @property
    def is_waiting(self) -> bool:
        """False once it has left: the line then passes over it."""
        ...

    @property
    def key(self) -> str: ...

    @property
    def cost(self) -> float:
        """What it will use, in any unit; above 0."""
        ...


W = TypeVar("W", bound=Waits)


class FairLine(Generic[W]):
    """Start-time fair queueing: over time each key gets an equal part of what is served.

    Each request gets a tag, the virtual time at which it would start if every key had a server
    of its own; the lowest tag is next. One heap, no rounds: a round robin with deficits would
    turn hundreds of times for one large prompt.
    """

    __slots__ = ("_finish", "_heap", "_order", "_virtual")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, W]] = []
        self._finish: dict[str, float] = {}
        self._virtual = 0.0
        self._order = 0

    def push(self, waiter: W) -> None:
        start = max(self._virtual, self._finish.get(waiter.key, 0.0))
        self._finish[waiter.key] = start + waiter.cost
        self._order += 1
        heapq.heappush(self._heap, (start, self._order, waiter))

    def peek(self) -> W | None:
        """Return who is next; None if nobody waits."""
        heap = self._heap
        while heap and not heap[0][2].is_waiting:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def pop(self) -> None:
        """Take out who is next, to be served."""
        self._virtual = heapq.heappop(self._heap)[0]
        if not self._heap or len(self._finish) > 2 * len(self._heap) + 16:
            # Keys that would start now anyway need not be remembered.
            virtual = self._virtual
            self._finish = {key: at for key, at in self._finish.items() if at > virtual}

    def left(self, waiter: W) -> None:
        """Give back what a waiter that left without being served was charged for."""
        owed = self._finish.get(waiter.key)
        if owed is not None:
            self._finish[waiter.key] = max(self._virtual, owed - waiter.cost)
        if len(self._heap) > 64 and sum(item[2].is_waiting for item in self._heap) * 2 < len(
            self._heap
        ):
            self._heap = [item for item in self._heap if item[2].is_waiting]
            heapq.heapify(self._heap)
