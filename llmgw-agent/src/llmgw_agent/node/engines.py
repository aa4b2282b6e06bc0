"""Where engines are on this node: given by the profile, installed by the agent, or beside it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmgw.contracts.engine import EngineAdapter, EngineHome, Packaged
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import safe_name_problem
from llmgw.domain.nodes import InstalledEngine
from llmgw.domain.replicas import FailureCause
from llmgw.errors import LlmgwError
from llmgw_agent.node.host import Report
from llmgw_agent.node.launcher import step_failed

RECORD = "installed.json"  #: written last: an environment without it is half installed


class Installer(Protocol):
    """Installs an engine on demand."""

    def can_install(self, engine: str, version: str) -> bool: ...

    async def ensure(self, engine: str, version: str, report: Report) -> Path:
        """Return the folder of the environment. Raises LlmgwError with the line that says why."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHomes:
    """Finds engines."""

    folder: Path  #: `<state>/engines/<engine>/<version>/`
    adapters: Mapping[str, EngineAdapter]
    installer: Installer | None = None

    async def resolve(self, spec: ShardSpec, report: Report) -> EngineHome:
        if spec.command:
            return _given(spec.command)
        version = spec.engine_version
        if version is not None and (problem := safe_name_problem(version)):
            raise step_failed(FailureCause.BAD_OPTION, f"engine version {problem}")
        for found in self._installed(spec.engine):
            if version in (None, found.version):
                return EngineHome(python=f"{found.path}/bin/python", version=found.version)
        beside = self._beside(spec.engine)
        if beside is not None and version in (None, beside.version):
            return EngineHome(version=beside.version)
        if (
            version is not None
            and self.installer is not None
            and self.installer.can_install(spec.engine, version)
        ):
            try:
                path = await self.installer.ensure(spec.engine, version, report)
            except LlmgwError as error:
                raise step_failed(FailureCause.INSTALL_FAILED, str(error)) from error
            return EngineHome(python=str(path / "bin/python"), version=version)
        if not _distributions(self.adapters.get(spec.engine)):
            return EngineHome()  # the adapter alone knows how to find it
        raise self._missing(spec)

    def installed(self) -> tuple[InstalledEngine, ...]:
        """Return what can be launched without installing anything, ordered by engine."""
        found: list[InstalledEngine] = []
        for engine in sorted(self.adapters):
            found.extend(self._installed(engine))
            if (beside := self._beside(engine)) is not None:
                found.append(beside)
            elif not _distributions(self.adapters[engine]):
                # Only the adapter can find it. Without this line nothing would be placed here.
                found.append(InstalledEngine(engine=engine, version="", path=""))
        return tuple(found)

    def _installed(self, engine: str) -> Iterator[InstalledEngine]:
        try:
            versions = sorted((self.folder / engine).iterdir(), reverse=True)
        except OSError:
            return
        for path in versions:
            if (path / RECORD).exists():
                yield InstalledEngine(engine=engine, version=path.name, path=str(path))

    def _beside(self, engine: str) -> InstalledEngine | None:
        """Return the engine that the agent's own environment has, if any."""
        for name in _distributions(self.adapters.get(engine)):
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            where = str(distribution.locate_file(""))
            return InstalledEngine(engine=engine, version=distribution.version, path=where)
        return None

    def _missing(self, spec: ShardSpec) -> Exception:
        versions = [item.version for item in self.installed() if item.engine == spec.engine]
        wanted = f"{spec.engine} {spec.engine_version or ''}".strip()
        have = f"it has {', '.join(versions)}" if versions else "it has none"
        return step_failed(
            FailureCause.ENGINE_MISSING,
            f"{wanted} is not on this node, {have}",
            hint=f"run: llmgw ctl engines install NODE {spec.engine} VERSION, or name a program "
            "of the node in `command:`",
        )


def _distributions(adapter: object) -> tuple[str, ...]:
    return adapter.distributions if isinstance(adapter, Packaged) else ()


def _given(command: tuple[str, ...]) -> EngineHome:
    program = shutil.which(command[0])
    if program is None or not os.access(program, os.X_OK):
        raise step_failed(
            FailureCause.ENGINE_MISSING,
            f"the profile's command {command[0]!r} is no program on this node",
            hint="give its absolute path, or leave `command` out",
        )
    return EngineHome(command=(program, *command[1:]))
