"""States of a shard as its node reports them, and of the replica that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.domain.ids import (
    DeviceId,
    Epoch,
    ModelName,
    NodeId,
    ProfileName,
    ReplicaId,
    ShardId,
)


class ShardState(StrEnum):
    """Where a shard is on its way from assignment to the end. The node is the one who says."""

    ASSIGNED = "assigned"  #: taken and persisted, nothing started
    INSTALLING = "installing"  #: the engine
    FETCHING = "fetching"  #: the weights
    STARTING = "starting"  #: the process runs, the engine does not answer yet
    READY = "ready"  #: health and a one-token request have passed in this incarnation
    SLEEPING = "sleeping"  #: the engine's own sleep: process up, device memory given back
    UNHEALTHY = "unhealthy"  #: was ready, does not answer or makes no progress
    DRAINING = "draining"  #: takes no new request
    STOPPING = "stopping"
    BACKOFF = "backoff"  #: failed, the agent starts it again at `retry_in_s`
    FAILED = "failed"  #: failed, the agent does not start it again by itself
    STOPPED = "stopped"  #: ended as ordered
    UNKILLABLE = "unkillable"  #: could not be ended; its devices stay booked

    @property
    def holds_devices(self) -> bool:
        """Whether devices of a shard in this state must not be given to another."""
        return self not in (ShardState.FAILED, ShardState.STOPPED)


class FailureCause(StrEnum):
    """Why a shard failed, in words that the operations handbook explains one by one."""

    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    OUT_OF_MEMORY = "out_of_memory"
    PORT_IN_USE = "port_in_use"
    BAD_OPTION = "bad_option"
    WEIGHTS_MISSING = "weights_missing"
    WEIGHTS_CORRUPT = "weights_corrupt"
    WEIGHTS_GATED = "weights_gated"
    DOWNLOAD_FAILED = "download_failed"
    DISK_FULL = "disk_full"
    DRIVER_MISMATCH = "driver_mismatch"
    ILLEGAL_INSTRUCTION = "illegal_instruction"
    ENGINE_MISSING = "engine_missing"
    INSTALL_FAILED = "install_failed"
    ENGINE_INTERNAL = "engine_internal"
    START_TIMEOUT = "start_timeout"
    NO_PROGRESS = "no_progress"
    WRONG_MODEL = "wrong_model"  #: another process, or another model, answers on the port (C035)
    KILLED = "killed"  #: by a signal that we did not send
    SHIM_LOST = "shim_lost"
    UNKILLABLE = "unkillable"
    DEVICE_LOST = "device_lost"
    DEVICE_BUSY = "device_busy"  #: another shard or agent owns it
    GANG_MEMBER_DIED = "gang_member_died"
    SLEEP_FAILED = "sleep_failed"  #: device memory did not come back, or waking failed
    REFUSED = "refused"  #: the node refused the command; the message says why
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why something ended that should not have, for a person."""

    cause: FailureCause
    message: str  #: one line, never empty
    hint: str = ""  #: the way out, where one is known
    exit_code: int | None = None  #: negative: signal number
    log_tail: tuple[str, ...] = ()  #: the engine's last lines, secrets masked
    command: tuple[str, ...] = ()  #: the exact argv, secrets masked
    retry_options: Mapping[str, object] | None = None
    """Options to add for one more try at once, e.g. `{"repack": False}` after SIGILL."""

    @property
    def sentence(self) -> str:
        """The cause and what was said of it; that a cause is not known is no news."""
        is_known = self.cause is not FailureCause.UNKNOWN
        return f"{self.cause}: {self.message}" if is_known else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a long step is."""

    what: str  #: e.g. `downloading weights`
    done: float
    total: float | None  #: None: not known
    unit: str  #: `bytes`, `layers`, `%`


class ReplicaState(StrEnum):
    """What `control.decide.lifecycle` makes of the shards' states."""

    PENDING = "pending"  #: ordered, no report yet
    STARTING = "starting"
    READY = "ready"
    SLEEPING = "sleeping"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"  #: its node is suspect or disconnected; it most likely still serves
    LOST = "lost"  #: its node is lost
    UNKILLABLE = "unkillable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One engine process of a replica, as last reported by its node."""

    id: ShardId
    replica: ReplicaId
    node: NodeId
    rank: int
    state: ShardState
    devices: tuple[DeviceId, ...] = ()
    ports: tuple[int, ...] = ()
    pid: int | None = None
    started_at: float | None = None  #: Unix seconds, by the node's clock; shown, never compared
    incarnation: int = 0  #: counts starts of this shard, restarts included
    restarts: int = 0
    failure: Failure | None = None  #: the first of the present crash loop, or the last one survived
    progress: Progress | None = None
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running copy of a model under one profile."""

    id: ReplicaId
    model: ModelName
    profile: ProfileName
    spec_hash: str
    epoch: Epoch  #: under which it was ordered
    state: ReplicaState
    reason: str = ""
    shards: tuple[Shard, ...] = ()
    shard_count: int = 1
    since: float = 0.0  #: monotonic seconds of the observer, when `state` was entered
    first_ready: float | None = None  #: likewise
    failures: int = 0  #: in a row, since it was last healthy for long
    labels: Mapping[str, str] = field(default_factory=dict)
