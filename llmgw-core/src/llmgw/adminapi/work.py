"""What operators ask of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from llmgw.adminapi.reply import Reply, Request

Reason = Annotated[str, Field(max_length=500)]


class ReasonRequest(Request):
    reason: Reason = ""
    """Shown wherever the node is."""


class DrainRequest(ReasonRequest):
    limit_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """Replicas that are still there after this long are stopped; null: no limit."""


class FenceRequest(Request):
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    """How you know that nothing runs there: its devices count as free from now on."""


class RevokeRequest(Request):
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    """Said to the node whenever it tries to connect."""


class LogSourceReply(Reply):
    name: str
    description: str
    lines: int


class LogSourcesReply(Reply):
    sources: tuple[LogSourceReply, ...]


class WeightsReply(Reply):
    ref: str
    size_bytes: int
    total_bytes: int | None = None
    """When whole, of a download that knows it."""
    state: str
    used_by: tuple[str, ...] = ()


class NodeWeightsReply(Reply):
    weights: tuple[WeightsReply, ...]


class WeightsRequest(Request):
    ref: Annotated[str, Field(min_length=3, max_length=1000)]


class EngineRequest(Request):
    engine: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,127}$")]


class StepReply(Reply):
    """A shard that is on its way, or that failed on it."""

    shard: str
    node: str
    model: str
    state: str
    progress: str = ""
    """E.g. `downloading weights 1.2 of 4.0 GiB`."""
    progress_done: float | None = None
    progress_total: float | None = None
    problem: str = ""
    """Why it failed, in one line."""
    hint: str = ""
    since_at: float


class JobReply(Reply):
    """Weights or an engine that an operator had a node fetch."""

    node: str
    kind: str
    """`weights` or `engine`."""
    subject: str
    who: str
    state: str
    """`running`, `done` or `failed`."""
    problem: str = ""
    """Why it failed, in one line."""
    progress: str = ""
    """E.g. `fetching weights 1.2 of 4.0 GiB`."""
    progress_done: float | None = None
    progress_total: float | None = None
    began_at: float
    ended_at: float | None = None


class ProgressReply(Reply):
    """What is under way. Jobs are those that were asked for at this server, newest first."""

    steps: tuple[StepReply, ...]
    jobs: tuple[JobReply, ...]


class RolloutReply(Reply):
    """A model whose replicas are not all of its newest version."""

    model: str
    new: Mapping[str, int] = {}
    """Replicas of the newest version by state."""
    old: Mapping[str, int] = {}
    """Replicas of versions before it by state."""
    problem: str = ""
    """Why it stands still; empty while it goes on."""
    hint: str = ""


class RetryReply(Reply):
    """A model of which all that had failed is tried again."""

    model: str
    nodes: tuple[str, ...]
    """Where it had failed; empty: it had not."""


class RolloutsReply(Reply):
    rollouts: tuple[RolloutReply, ...]
