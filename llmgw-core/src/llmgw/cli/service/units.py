"""The units of a server and of an agent, as text.

What is left out on purpose: `PrivateTmp` and `RuntimeDirectory`, which are deleted when a unit
stops, with the sockets of the engines in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from llmgw.errors import ConfigError, Problem

Section = Sequence[tuple[str, str]]


class Kind(StrEnum):
    """What a unit runs."""

    SERVER = "server"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What differs from site to site."""

    kind: Kind
    program: Path  #: `llmgw` of the environment that it is installed in
    config: Path
    user: str = "llmgw"  #: a system user: a login user's logout removes its shared memory

    @property
    def file_name(self) -> str:
        return f"llmgw-{self.kind}.service"


_COMMON: Section = (
    ("Type", "notify"),
    # One whose event loop has stood still for as long is ended, and started again.
    ("WatchdogSec", "60"),
    ("StateDirectory", "llmgw"),
    ("StateDirectoryMode", "0700"),
    ("UMask", "0077"),
    ("NoNewPrivileges", "yes"),
    ("Restart", "always"),
    ("RestartSec", "1"),
)
_OWN: Mapping[Kind, Section] = {
    Kind.SERVER: (
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("TimeoutStartSec", "infinity"),  # a store may be migrated first
        ("TimeoutStopSec", "60"),  # open requests have 30 s to end
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
    ),
    Kind.AGENT: (
        # Engines outlive the agent: its own process alone is stopped, also for a restart.
        ("KillMode", "process"),
        ("TimeoutStopSec", "150"),  # with `stop_engines` these have two minutes to end
        # An engine that is killed for want of memory must not end the agent.
        ("OOMPolicy", "continue"),
        # Engines get cgroups of their own, so that a whole tree can be killed at once.
        ("Delegate", "yes"),
        ("LimitMEMLOCK", "infinity"),  # RDMA and pinned host memory
        ("LimitNOFILE", "1048576"),
        ("TasksMax", "infinity"),
    ),
}


def render(unit: Unit) -> str:
    """Return the unit file. Raises ConfigError for what systemd would read otherwise than meant."""
    if problems := _problems(unit):
        raise ConfigError(f"llmgw service install {unit.kind}", problems)
    service = (
        ("User", unit.user),
        ("ExecStart", f"{unit.program} {unit.kind} --config {unit.config}"),
        *_OWN[unit.kind],
        *_COMMON,
    )
    head = (
        ("Description", f"llmgw {unit.kind}"),
        ("Wants", "network-online.target"),
        ("After", "network-online.target"),
        ("StartLimitIntervalSec", "0"),  # it is tried for ever: nobody is there to start it again
    )
    return "\n".join(
        (
            *_section("Unit", head),
            *_section("Service", service),
            *_section("Install", (("WantedBy", "multi-user.target"),)),
        )
    )


def _section(name: str, lines: Section) -> tuple[str, ...]:
    return (f"[{name}]", *(f"{key}={value}" for key, value in lines), "")


def _problems(unit: Unit) -> list[Problem]:
    found = []
    for name, path in (("--program", unit.program), ("--config", unit.config)):
        if not path.is_absolute():
            found.append(Problem(path=name, message=f"must be an absolute path, got {str(path)!r}"))
        # Quoting rules of ExecStart are not those of a shell, and nobody names programs so.
        elif any(sign in "\"'\\%$;" or sign.isspace() for sign in str(path)):
            found.append(
                Problem(path=name, message=f"must be free of blanks and quotes, got {str(path)!r}")
            )
    if unit.user == "root":
        found.append(Problem(path="--user", message="must be an unprivileged system user"))
    return found
