"""Installs engine versions side by side, each in an environment of its own.

    <folder>/<engine>/<version>/bin/python        the environment
    <folder>/<engine>/<version>/installed.json    what is in it; written last
    <folder>/<engine>/<version>.lock              held by whoever installs

From a requirement set with hashes that the adapter ships, or the site's own; wheels only, no
dependency that is not in it. What an attempt that died has left is removed and made anew: the
installer's own cache has the wheels. Files that run code at each start of Python are refused
unless they are known.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from llmgw.contracts.engine import EngineAdapter, Installable
from llmgw.domain.ids import safe_name_problem
from llmgw.domain.nodes import InstallableEngine
from llmgw.errors import PermanentError, TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.durable import write_atomically
from llmgw_agent.node.engines import RECORD
from llmgw_agent.node.host import Report
from llmgw_agent.node.telling import on_loop

log = get_logger(__name__)

# Shims that packaging tools themselves put into every environment.
_KNOWN_STARTERS = frozenset({"distutils-precedence.pth", "_virtualenv.pth"})
_STARTERS = ("sitecustomize.py", "usercustomize.py")
_CAUSE = re.compile(r"^\s*(?:cause|caused by):\s*(.+)", re.IGNORECASE)
_LASTING = (
    "hash",
    "no matching distribution",
    "could not find a version",
    "no solution found",
    "not supported",
)
"""Words for what another try does not mend, in small letters."""
_STEP = re.compile(r"^\s*(Collecting|Using cached|Downloading|Processing|Downloaded|\+)\s")
_LOCK_WAIT_S = 1.0


class _Cancelled(Exception):
    """Nobody wants it any more."""


class EngineInstaller:
    """The engines that this agent has installed."""

    def __init__(
        self,
        folder: Path,
        *,
        adapters: Mapping[str, EngineAdapter],
        used: Callable[[], frozenset[tuple[str, str | None]]],
        locks: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """used: (engine, version) of every assigned shard.

        locks: the site's own requirement sets, `<engine>-<version>.txt`, which come before the
        adapter's. environment: of the installer; None: the agent's own.
        """
        self._folder = folder
        self._adapters = adapters
        self._used = used
        self._locks = locks
        self._environment = environment
        self._one_at_a_time: dict[tuple[str, str], anyio.Lock] = {}

    def can_install(self, engine: str, version: str) -> bool:
        """Whether there is a requirement set for this version."""
        try:
            self._requirements(engine, version)
        except PermanentError:
            return False
        return True

    def installable(self) -> tuple[InstallableEngine, ...]:
        """Return what the site has requirement sets for, ordered by engine. May block on a disk."""
        names = sorted(path.stem for path in self._locks.glob("*.txt")) if self._locks else []
        return tuple(
            InstallableEngine(engine=engine, version=name.removeprefix(f"{engine}-"))
            for engine in sorted(self._adapters)
            for name in names
            if name.startswith(f"{engine}-")
        )

    async def install(self, engine: str, version: str, *, report: Report) -> None:
        """Return once it is installed. Raises PermanentError or TransientError."""
        await self.ensure(engine, version, report)

    async def ensure(self, engine: str, version: str, report: Report) -> Path:
        """Return the environment, made if need be; report counts packages.

        Raises PermanentError or TransientError with the line that says why.
        """
        home = self._home(engine, version)
        requirements = self._requirements(engine, version)
        async with self._one_at_a_time.setdefault((engine, version), anyio.Lock()):
            give_up = threading.Event()
            try:
                await anyio.to_thread.run_sync(
                    self._install,
                    home,
                    requirements,
                    on_loop(report),
                    give_up,
                    abandon_on_cancel=True,
                )
            except OSError as error:
                raise TransientError(f"{engine} {version} cannot be installed: {error}") from error
            finally:
                give_up.set()
        return home

    async def remove(self, engine: str, version: str) -> None:
        """Remove it. Raises PermanentError if it is not there or a shard uses it."""
        home = self._home(engine, version)
        if (engine, version) in self._used() or (engine, None) in self._used():
            raise PermanentError(
                f"{engine} {version} is used by a shard of this node: stop it first"
            )
        if not home.exists():
            raise PermanentError(f"{engine} {version} was not installed by this agent")
        await anyio.to_thread.run_sync(_remove, home)
        log.info("engine removed", engine=engine, version=version)

    def _home(self, engine: str, version: str) -> Path:
        for name in (engine, version):
            if problem := safe_name_problem(name):
                raise PermanentError(f"engine and version {problem}")
        return self._folder / engine / version

    def _requirements(self, engine: str, version: str) -> str:
        self._home(engine, version)
        if self._locks is not None:
            try:
                return (self._locks / f"{engine}-{version}.txt").read_text()
            except FileNotFoundError:
                pass
        adapter = self._adapters.get(engine)
        if not isinstance(adapter, Installable):
            raise PermanentError(
                f"{engine} ships no requirement sets: install it on the node by hand, or put "
                f"{engine}-{version}.txt into the agent's folder of locks"
            )
        return adapter.requirements(version)

    def _install(
        self, home: Path, requirements: str, report: Report, give_up: threading.Event
    ) -> None:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(home.parent / f"{home.name}.lock", give_up):
            if (home / RECORD).exists():
                return
            shutil.rmtree(home, ignore_errors=True)
            log.info("engine installation begins", engine=home.parent.name, version=home.name)
            try:
                self._fill(home, requirements, report, give_up)
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
            log.info("engine installed", engine=home.parent.name, version=home.name)

    def _fill(
        self, home: Path, requirements: str, report: Report, give_up: threading.Event
    ) -> None:
        total = sum(1 for line in requirements.splitlines() if re.match(r"[A-Za-z0-9]", line))
        self._run([sys.executable, "-m", "venv", "--without-pip", str(home)], give_up, _ignore)
        wanted = home / "requirements.txt"
        wanted.write_text(requirements)
        done = 0

        def count(line: str) -> None:
            nonlocal done
            if _STEP.match(line):
                done = min(done + 1, total)
                report(done, total)

        command = [*_installer(home / "bin/python"), "-r", str(wanted)]
        command += ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
        self._run(command, give_up, count)
        packages = _site_packages(home)
        if strangers := _unknown_starters(packages):
            raise PermanentError(
                f"{', '.join(strangers)} would run code at every start of Python: the "
                "requirement set must not bring them"
            )
        write_atomically(home / RECORD, msgspec.json.encode(_contents(packages)))

    def _run(
        self, command: list[str], give_up: threading.Event, heard: Callable[[str], None]
    ) -> None:
        environment = os.environ if self._environment is None else self._environment
        lines: list[str] = []
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environment, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        ) as process:
            try:
                assert process.stdout is not None  # noqa: S101 -- asked for above
                for line in process.stdout:
                    if give_up.is_set():
                        raise _Cancelled
                    lines.append(line.rstrip())
                    heard(line)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise _failure(lines)


def _installer(python: Path) -> list[str]:
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", str(python)]
    if importlib.util.find_spec("pip") is None:
        raise PermanentError("engines are installed by uv or pip: install one beside the agent")
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]


def _ignore(line: str) -> None:
    """Nobody counts these."""


def _failure(lines: list[str]) -> Exception:
    """Return what pip or uv failed for, in one line: uv puts its causes below its error."""
    errors = [line for line in lines if line.lstrip("× ").lower().startswith("error")]
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    why = (errors or [line for line in lines if line.strip()] or ["the installer said nothing"])[-1]
    why = ": ".join([re.sub(r"^\s*(error|ERROR):\s*", "", why), *causes[:1]])
    said = "\n".join([*errors, *causes]).lower()
    if any(word in f"{why.lower()} {said}" for word in ("no space left", "os error 28")):
        return TransientError(f"no room on the disk for the engine: {why}", retry_after_s=60.0)
    kind = PermanentError if any(word in said for word in _LASTING) else TransientError
    return kind(f"the engine cannot be installed: {why}")


def _site_packages(home: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return home / "lib" / version / "site-packages"


def _unknown_starters(packages: Path) -> list[str]:
    """Return files that Python runs by itself at each start and that nobody here knows."""
    found = [name for name in _STARTERS if (packages / name).exists()]
    for path in sorted(packages.glob("*.pth")):
        runs = any(
            line.startswith(("import ", "import\t"))
            for line in path.read_text(errors="replace").splitlines()
        )
        if runs and path.name not in _KNOWN_STARTERS and not path.name.endswith("-nspkg.pth"):
            found.append(path.name)
    return found


def _contents(packages: Path) -> dict[str, object]:
    distributions = importlib.metadata.distributions(path=[str(packages)])
    return {
        "python": sys.version.split()[0],
        "packages": sorted(f"{item.name}=={item.version}" for item in distributions),
    }


@contextmanager
def _locked(path: Path, give_up: threading.Event) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if give_up.wait(_LOCK_WAIT_S):
                    raise _Cancelled from None
        yield
    finally:
        os.close(descriptor)


def _remove(home: Path) -> None:
    (home / RECORD).unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
