"""Settings of `llmgw agent`: file < `LLMGW_AGENT__…` < flags, every problem at once."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationError

from llmgw.config.documents import Steps, read_document
from llmgw.config.problems import problems_of, unknown_name
from llmgw.config.section import Section
from llmgw.domain.ids import safe_name_problem
from llmgw.errors import ConfigError, Problem
from llmgw_agent.wire.addresses import parse_servers

ENV_PREFIX = "LLMGW_AGENT__"
_JSON_FIELDS = ("labels", "fabric", "port_range", "weights_roots")


def _server(text: str) -> str:
    parse_servers(text)
    return text


def _safe(name: str) -> str:
    if problem := safe_name_problem(name):
        raise ValueError(problem)
    return name


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        raise ValueError(f"must be an IP address of this machine, got {text!r}") from None
    if address.is_unspecified:
        raise ValueError(f"must be the one address that routers reach, got {text!r}")
    return str(address)


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.0.0.0/8: {error}") from None


def _absolute(path: Path) -> Path:
    if not path.expanduser().is_absolute():
        raise ValueError(f"must be an absolute path, got {str(path)!r}")
    return path.expanduser()


def _default_node() -> str:
    return socket.gethostname().split(".")[0] or "node"


Root = Annotated[Path, AfterValidator(_absolute)]


class WeightSettings(Section):
    """The cache of model files."""

    folder: Root | None = None
    """null: `<state_dir>/weights`. Two agents of one machine may share it."""
    budget_gib: Annotated[float, Field(gt=0)] | None = None
    """What the cache may take in all; null: what the disk has."""
    reserve_gib: Annotated[float, Field(ge=0)] = 2.0
    """Left free on the disk, for logs and state."""
    networks: tuple[Annotated[str, AfterValidator(_network)], ...] = ()
    """Networks that are not public but may be fetched from by `https:`, e.g. a mirror's."""
    hub_token: SecretStr | None = None
    """Token of the model hub, for gated repositories."""
    peers: Literal["fleet", "proven", "off"] = "fleet"
    """Whether weights are fetched from other nodes first. `proven`: only those of which the
    reference or its source says what they are; `fleet`: others are believed as their node has them."""
    share: bool = True
    """Give whole weights of the cache to other nodes, as the servers say."""
    share_port: Annotated[int, Field(ge=0, le=65535)] = 8083
    """Where, on `data_address`; another port is taken if somebody has it already. 0: any."""
    share_connections: Annotated[int, Field(ge=1, le=256)] = 8
    """At a time; who comes beyond them fetches elsewhere."""
    share_mib_s: Annotated[float, Field(gt=0)] = 1024.0
    """MiB a second, of all connections together."""


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""
    format: Literal["text", "json"] = "text"
    """`json` writes one object a line."""


class AgentSettings(Section):
    """Everything that one agent is told."""

    servers: tuple[Annotated[str, AfterValidator(_server)], ...] = ()
    """`HOST:PORT` or `unix:/PATH` of every server. None: what is assigned is kept running."""
    node_id: Annotated[str, AfterValidator(_safe)] = Field(default_factory=_default_node)
    """Name of this node in the fleet; default: the host's name."""
    state_dir: Annotated[Path, AfterValidator(_absolute)] | None = None
    """Everything that an agent keeps lies below it; null: the platform's state folder."""
    pool: Annotated[str, AfterValidator(_safe)] = "default"
    """The part of the fleet that this node belongs to; a join token may say another."""
    labels: Mapping[str, str] = {}
    """Labels that profiles and policies may ask for."""
    fabric: Mapping[str, str] = {}
    """Fabric labels that cannot be detected, e.g. `{ib: rail-group-1}`."""
    data_address: Annotated[str, AfterValidator(_address)] = "127.0.0.1"
    """IP that engines bind, and where routers and other nodes reach them."""
    engine_firewall: bool = False
    """A firewall lets only routers and the fleet's nodes reach engines' ports. Without it, off
    loopback, engines whose sleep endpoints have no key are stopped instead of put to sleep."""
    join: SecretStr | None = None
    """Join token, or `@FILE` with one."""
    rejoin: bool = False
    """Belong to the cluster of the next server that answers, whatever the node belonged to."""
    weights_roots: tuple[Root, ...] = ()
    """Folders that `path:` weights may lie in."""
    weights: WeightSettings = WeightSettings()
    engine_locks: Root | None = None
    """Folder with the site's own requirement sets of engines, `<engine>-<version>.txt`."""
    port_range: tuple[int, int] = (20000, 29999)
    """Ports for engines, inclusive."""
    machine: Annotated[str, AfterValidator(_safe)] | None = None
    """Name of the machine that this agent's devices and ports belong to; null: the one that it runs
    on. For an agent that has its own, such as one of several containers of a host."""
    lock_folder: Root | None = None
    """Host-wide folder of device locks; null: `/run/lock/llmgw`, or below the temporary folder."""
    stop_engines: bool = False
    """Stop every engine when the agent is stopped."""
    log: LogSettings = LogSettings()
    plugins: Mapping[str, object] = {}
    """Sections of plugins by name."""

    @property
    def guards_engines(self) -> bool:
        """Whether only this machine or routers reach the engines."""
        return self.engine_firewall or ipaddress.ip_address(self.data_address).is_loopback


def load_agent(
    path: Path | None, env: Mapping[str, str], flags: Mapping[str, object]
) -> AgentSettings:
    """Read and check everything that one agent is told.

    path: a YAML or TOML file; None: there is none. flags: values by field name, those not given
    left out. Raises ConfigError with every problem found.
    """
    data: dict[str, object] = {}
    problems: list[Problem] = []
    if path is not None:
        document = read_document(path)
        data.update(document.data)
        problems.extend(document.problems)
    from_env, env_problems = _environment(env)
    _merge(data, from_env)
    problems.extend(env_problems)
    _merge(data, flags)
    source = str(path) if path else "settings of the agent"
    try:
        settings = AgentSettings.model_validate(data)
    except ValidationError as error:
        problems.extend(problems_of(error, AgentSettings, _nowhere))
        raise ConfigError(source, problems) from None
    if problems:
        raise ConfigError(source, problems)
    return settings


def _nowhere(steps: Steps) -> str:  # noqa: ARG001 -- the signature that `problems_of` asks for
    return ""


def _merge(under: dict[str, object], over: Mapping[str, object]) -> None:
    for key, value in over.items():
        below = under.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            joined = dict(below)
            _merge(joined, value)
            under[key] = joined
        else:
            under[key] = value


def _environment(env: Mapping[str, str]) -> tuple[dict[str, object], list[Problem]]:
    """Return what `LLMGW_AGENT__…` variables say: lists and mappings as JSON, servers by comma."""
    data: dict[str, object] = {}
    problems: list[Problem] = []
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX):
            continue
        first, *rest = name.removeprefix(ENV_PREFIX).lower().split("__")
        if first not in AgentSettings.model_fields:
            known = AgentSettings.model_fields
            problems.append(Problem(path=name, message=unknown_name(first, known, what="setting")))
            continue
        value: object = env[name]
        if first == "servers":
            value = [part.strip() for part in env[name].split(",") if part.strip()]
        elif first in _JSON_FIELDS and not rest:
            try:
                value = json.loads(env[name])
            except ValueError:
                problems.append(Problem(path=name, message="must be JSON"))
                continue
        for step in reversed(rest):
            value = {step: value}
        _merge(data, {first: value})
    return data, problems
