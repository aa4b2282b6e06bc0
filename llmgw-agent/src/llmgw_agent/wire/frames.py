"""The frames of a session and of a bulk call that are no values of the domain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llmgw.contracts.dispatch import LogSource, WeightsEntry
from llmgw.domain.commands import Command
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Progress
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport


class UnknownFrame(Exception):
    """A frame, or an enum value in it, that only a newer release knows. Answer Unsupported."""


class MalformedFrame(Exception):
    """Bytes that no release sends. Nothing after them can be trusted: end the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """The peer did not understand something that we sent, and ignored it."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The server took the registration."""

    heartbeat_interval_s: float
    cluster_id: str
    server_version: str
    capabilities: frozenset[str]  #: of the agent's, those that the server will use
    authorities: str = ""  #: `authorities_digest` of those in force; "": not said


class GoodbyeCode(StrEnum):
    """Why a server ends or refuses a session. Engines stay as they are in every case."""

    NODE_ID_TAKEN = "node_id_taken"  #: another agent has a live session under this node id
    SUPERSEDED = "superseded"  #: a newer session of the same agent took over
    STALE_SESSION = "stale_session"  #: a newer session of the same agent was there first
    REVOKED = "revoked"
    IDENTITY_MISMATCH = "identity_mismatch"  #: the certificate names another node
    OTHER_CLUSTER = "other_cluster"
    AGENT_TOO_NEW = "agent_too_new"
    AGENT_TOO_OLD = "agent_too_old"
    SILENT = "silent"  #: no heartbeat for three intervals
    MALFORMED = "malformed"
    STOPPING = "stopping"  #: the server ends; it or another will be back


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """The last frame of a session. code may be one that only a newer server knows."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """Shows that the server's loop runs, not only its sockets."""

    sequence: int
    authorities: str = ""  #: as in Welcome


UpFrame = Registration | Heartbeat | ShardReport | Rejection | Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLogs:
    """Answered by one LogSources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """Answered by LogLines, for ever if `follow`, else until BulkDone."""

    source: str
    lines: int
    follow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListWeights:
    """Answered by one WeightsList."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullWeights:
    """Answered by BulkWorking while it lasts, then BulkDone."""

    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveWeights:
    """Answered by BulkDone."""

    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallEngine:
    """Answered by BulkWorking while it lasts, then BulkDone."""

    engine: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveEngine:
    """Answered by BulkDone."""

    engine: str
    version: str


Ask = ListLogs | ReadLog | ListWeights | PullWeights | RemoveWeights | InstallEngine | RemoveEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """The agent is to open a bulk call with this id and answer there."""

    id: str
    ask: Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitPeer:
    """Another node may fetch the weights of this manifest here, for a while."""

    node: NodeId
    manifest: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPeer:
    """A node that has weights, and where it gives them."""

    node: NodeId
    address: str  #: an IP, no brackets
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOffer:
    """Where weights can be had in the fleet."""

    manifest: str  #: digest of their list of files and hashes
    peers: tuple[WeightsPeer, ...]  #: the nearest first


DownFrame = Welcome | Goodbye | HeartbeatReply | Command | BulkRequest | AdmitPeer | Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOpening:
    """Says which request the call answers."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSources:
    sources: tuple[LogSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    lines: tuple[bytes, ...]  #: as written, without the newline; perhaps no text at all


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsList:
    entries: tuple[WeightsEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkWorking:
    """A sign of life: the work goes on."""

    progress: Progress | None = None  #: how far it is, if that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkDone:
    """The answer is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProblem:
    """It cannot be done."""

    message: str
    transient: bool  #: time may fix it


BulkFrame = BulkOpening | LogSources | LogLines | WeightsList | BulkWorking | BulkDone | BulkProblem
