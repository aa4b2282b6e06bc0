"""What a row of answers means. Decisions over a little memory; `now` is an argument."""

from __future__ import annotations

from llmgw.domain.loads import EngineLoad


class Answers:
    """Turns single health checks into a verdict that does not flap."""

    __slots__ = ("_bad", "_good", "_in_a_row", "is_answering", "is_gone")

    def __init__(self, *, bad: int, good: int) -> None:
        self._bad = bad
        self._good = good
        self._in_a_row = 0  #: answers against the present verdict
        self.is_answering = True
        self.is_gone = False  #: refused the last connection, and no good verdict since

    def take(self, ok: bool, *, weight: int = 1) -> bool:
        """Count one check, for as many as its weight; return the verdict."""
        if ok is self.is_answering:
            self._in_a_row = 0
        else:
            self._in_a_row += weight
            if self._in_a_row >= (self._good if ok else self._bad):
                self.is_answering = ok
                self._in_a_row = 0
                self.is_gone = self.is_gone and not ok
        return self.is_answering

    def unreachable(self) -> bool:
        """No connection came about, though it was waited for; return the verdict.

        It counts for two: the network itself has tried more than once by then, and a partition
        may cost ten seconds, of which five can be over before the first check.
        """
        return self.take(False, weight=2)

    def refused(self) -> bool:
        """Nothing listens there any more, which needs no second opinion; return the verdict."""
        self.is_answering = False
        self.is_gone = True
        self._in_a_row = 0
        return False


class Progress:
    """Notices an engine that says it computes and does not (its health page still answers)."""

    __slots__ = ("_since", "_value", "has_restarted")

    def __init__(self) -> None:
        self._value: float | None = None
        self._since = 0.0
        self.has_restarted = False  #: the newest reading's counters were below the one before

    def is_stuck(self, load: EngineLoad, now: float, *, patience_s: float) -> bool:
        """Take a reading; say whether requests run and no token has moved for `patience_s`."""
        value = load.progress
        before = self._value
        self.has_restarted = value is not None and before is not None and value < before
        if value is None or value != before or not load.running:
            self._value = value
            self._since = now
            return False
        return now - self._since >= patience_s
