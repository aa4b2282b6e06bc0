"""Machines for a reader of the documentation who types its commands as they stand.

A machine is a set of namespaces: an address in a network of their own, a host's name, files of its
own over this system's, processes that end with it. Its package index is a folder of wheels, and
its `systemctl` a stand-in. Needs root on Linux, util-linux and iproute2.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from llmgw.testing import systemctl

PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
_OVERLAID = ("etc", "opt", "srv", "var")  #: what a reader writes to, beside his home
_LIMIT_S = 300.0
_OURS = re.compile(r"LLMGW|PYTEST|PYTHON|VIRTUAL_ENV|NOX|XDG")
#: How this system reaches its package index.
_WAYS_OUT = re.compile(r"PIP|UV|.*_proxy$", re.IGNORECASE)
#: The first process of a machine reaps what others leave, which `sleep` would not.
_INIT = "hostname $0; echo; while :; do sleep 3600 & wait $!; done"


def can_make_machines() -> bool:
    """Whether this user and system can."""
    programs = ("ip", "unshare", "nsenter", "runuser", "mount")
    return os.geteuid() == 0 and all(map(shutil.which, programs))


class Network:
    """Machines that reach each other, and nothing else."""

    def __init__(self, name: str, home: Path, index: Mapping[str, str]) -> None:
        """name: of no other network on this host, a few characters. index: what makes pip and uv
        know the machines' package index, `llmgw.testing.tiny_wheel.index_of`."""
        self.name = name
        self.home = home
        self.index = index
        self._machines: list[Machine] = []
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", name, "link", "set", "br0", "up")

    def machine(self, name: str, address: str, *, opt: Path | None = None) -> Machine:
        """Add a machine. opt: what its `/opt` has from the start, `Machine.keep`."""
        made = Machine(self, name, opt)
        self._machines.append(made)
        wire = f"w{len(self._machines)}"
        peer = ("type", "veth", "peer", "name", "eth0", "netns", made.space)
        run("ip", "-n", self.name, "link", "add", wire, *peer)
        run("ip", "-n", self.name, "link", "set", wire, "master", "br0", "up")
        run("ip", "-n", made.space, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", made.space, "link", "set", device, "up")
        return made

    def close(self) -> None:
        for machine in reversed(self._machines):
            machine.close()
        run("ip", "netns", "del", self.name)


class Machine:
    """One of them. Its commands are typed in `home`, as root, in one shell after another."""

    def __init__(self, network: Network, name: str, opt: Path | None) -> None:
        self.network = network
        self.name = name
        self.space = f"{network.name}-{name}"  #: its network namespace
        self._layers = network.home / name
        self.home = self._layers / "home"
        self.home.mkdir(parents=True)
        run("ip", "netns", "add", self.space)
        spaces = ("--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
        self._holder = subprocess.Popen(
            ["ip", "netns", "exec", self.space, "unshare", *spaces, "bash", "-c", _INIT, name],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()  # the namespaces are there
        holder = self._holder.pid
        (child,) = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        self._enter = ("nsenter", "--target", child, "--mount", "--pid", "--uts")
        self._lay(opt)
        programs = self._layers / "programs"
        programs.mkdir()
        (programs / "python3").symlink_to(PYTHON)
        stand_in = programs / "systemctl"
        stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -I {systemctl.__file__} "$@"\n')
        stand_in.chmod(0o755)
        path = [
            place
            for place in os.environ["PATH"].split(os.pathsep)
            if not (Path(place).parent / "pyvenv.cfg").exists()
        ]
        self._env = {
            **{
                name: value
                for name, value in os.environ.items()
                if not (_OURS.match(name) or _WAYS_OUT.match(name))
            },
            **network.index,
            "HOME": str(self.home),
            "PATH": os.pathsep.join(["/opt/llmgw/bin", str(programs), *path]),
            "PYTHONUNBUFFERED": "1",
        }
        names = filter(_WAYS_OUT.match, (*os.environ, *network.index))
        self._online = {name: os.environ.get(name) for name in names}
        self._exports: list[str] = []  # a reader goes on in one shell
        self._started: list[Started] = []

    def _lay(self, opt: Path | None) -> None:
        """Put files of its own over this system's."""
        closed = [place for place in PYTHON.parents if not place.stat().st_mode & 0o001]
        for folder in {*_OVERLAID, *(place.parts[1] for place in closed)}:
            upper, work = self._layers / folder, self._layers / f"{folder}.work"
            upper.mkdir()
            work.mkdir()
            lower = f"{opt}:/opt" if opt is not None and folder == "opt" else f"/{folder}"
            # Volatile: else the end of a machine waits for the disk, for files that nobody wants.
            layers = f"volatile,lowerdir={lower},upperdir={upper},workdir={work}"
            run(*self._enter, "mount", "-t", "overlay", "overlay", "-o", layers, f"/{folder}")
        for place in closed:  # a developer's Python may lie where a service does not get
            run(*self._enter, "chmod", "o+x", str(place))

    def write(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        """Write a file as its operator would; a relative path is one in the reader's folder."""
        text = content.encode() if isinstance(content, str) else content
        place = shlex.quote(path)
        words = f"{self._here}; mkdir -p $(dirname {place}); cat > {place}; chmod {mode:o} {place}"
        subprocess.run([*self._enter, "sh", "-c", words], input=text, check=True)

    def set(self, **env: str) -> None:
        """Set variables of all shells from now on."""
        self._env |= env

    def type(self, *commands: str, online: bool = False) -> str:
        """Type commands; return what they said. Raises AssertionError with their words if one fails.

        online: in this system's network, for what has to fetch from the package index.
        """
        changed = self._online if online else {}
        env = {key: value for key, value in {**self._env, **changed}.items() if value is not None}
        network = () if online else self._network
        done = subprocess.run(
            [*network, *self._enter, "bash", "-e"],
            input="\n".join([self._here, *self._exports, *commands]),
            env=env,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        self._exports += [
            command for command in commands if command.startswith(("export ", "umask "))
        ]
        assert done.returncode == 0, (
            f"{self.name}: {commands} ended with {done.returncode}\n"
            f"{done.stdout}{done.stderr}\n{self.logs()}"
        )
        return done.stdout

    def start(self, command: str, *, shows: str = "") -> Started:
        """Type a command that goes on until Ctrl-C, and return when it serves.

        shows: serves when it has printed this; empty: when it has told its supervisor so.
        """
        log = self._layers / f"log-{len(list(self._layers.glob('log-*')))}"
        with systemctl.heard() as (address, ready), log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(*self._network, *self._enter, "bash", "-c"),
                    "\n".join([self._here, *self._exports, command]),
                ],
                env=self._env if shows else {**self._env, "NOTIFY_SOCKET": address},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            started = Started(process, log)
            self._started.append(started)
            if shows:
                started.wait_for(shows)
            else:
                assert systemctl.wait_ready(ready, process), f"{command}: {started.text}"
        return started

    def keep(self, folder: Path) -> Path:
        """Copy what was put into `/opt` into a folder, for machines that have it, too."""
        run("cp", "-a", f"{self._layers}/opt/.", str(folder))
        return folder

    def logs(self) -> str:
        """Return the ends of what all its programs wrote."""
        own = [*self._layers.glob("log-*"), *self._layers.glob("var/log/llmgw-*.log")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in own)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        for started in self._started:
            started.reap()
        run("ip", "netns", "del", self.space)

    @property
    def _network(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.space)

    @property
    def _here(self) -> str:
        return f"cd {shlex.quote(str(self.home))}"


class Started:
    """A program that goes on until Ctrl-C."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str) -> None:
        """Wait until it has printed this."""
        end = time.monotonic() + _LIMIT_S
        while words not in self.text:
            assert self._process.poll() is None, f"it has ended:\n{self.text}"
            assert time.monotonic() < end, f"it does not say {words!r}:\n{self.text}"
            time.sleep(0.1)

    def reap(self) -> None:
        """Wait for the end of one whose machine has ended."""
        self._process.wait()

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until nothing of it is left."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait()
        end = time.monotonic() + _LIMIT_S
        while _is_running(self._process.pid):
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            time.sleep(0.1)


def _is_running(group: int) -> bool:
    """Whether any process of a group is alive."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # gone meanwhile
            continue
        if int(its) == group and state != "Z":
            return True
    return False


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
