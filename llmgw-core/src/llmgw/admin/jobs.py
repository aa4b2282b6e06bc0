"""Long work that operators asked nodes for: what runs, and how the last ones ended.

Of this process, and in memory: the node itself says what it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from llmgw.clock import Clock
from llmgw.contracts.dispatch import Heard
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Progress
from llmgw.errors import LlmgwError


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pull of weights, or one installation of an engine."""

    number: int
    node: NodeId
    kind: str  #: `weights` or `engine`
    subject: str  #: weights ref, or engine and version
    who: str
    began_at: float  #: Unix seconds
    ended_at: float | None = None
    problem: str = ""  #: why it failed, in one line
    progress: Progress | None = None  #: how far it is, or was

    @property
    def state(self) -> str:
        if self.ended_at is None:
            return "running"
        return "failed" if self.problem else "done"


class Jobs:
    """The newest jobs."""

    def __init__(self, *, keep: int = 100) -> None:
        self._jobs: dict[int, Job] = {}
        self._keep = keep
        self._count = 0

    def list(self) -> tuple[Job, ...]:
        """Return all that are known, newest first."""
        return tuple(reversed(self._jobs.values()))

    @contextmanager
    def running(
        self, node: NodeId, kind: str, subject: str, *, who: str, clock: Clock
    ) -> Iterator[Heard]:
        """Note a job as running, how far it is and how it ended. What it raises goes on."""
        self._count += 1
        number = self._count
        job = Job(
            number=number, node=node, kind=kind, subject=subject, who=who, began_at=clock.wall()
        )
        self._jobs[number] = job
        while len(self._jobs) > self._keep:
            del self._jobs[next(iter(self._jobs))]
        problem = "given up before its end"

        def heard(progress: Progress) -> None:
            self._change(number, progress=progress)

        try:
            yield heard
            problem = ""
        except LlmgwError as error:
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
            raise
        finally:
            self._change(number, ended_at=clock.wall(), problem=problem)

    def _change(self, number: int, **fields: Any) -> None:
        if number in self._jobs:
            self._jobs[number] = replace(self._jobs[number], **fields)
