"""Carry out docs/install.md as it stands, on two machines.

Run by `nox -s wheels` as root on Linux, with the folder of built wheels and the Python of an
environment that has the packages. A machine is a set of namespaces: an address of its own, files
of its own over this system's, processes that end with it. `systemctl` is a stand-in for systemd
that starts a unit as its file says and waits until it has reported to be ready; else nothing is
other than on the page. pip runs where there is an index; the wheels stand for ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmgw.testing.tiny_gguf import write_tiny_gguf

PAGE = Path(__file__).parents[3] / "docs" / "install.md"
_LIMIT_S = 300.0
_PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
_OVERLAID = ("etc", "opt", "srv", "var")  #: what the page writes to


class Machine:
    """One of the two."""

    def __init__(self, name: str, home: Path, wheels: Path, running: contextlib.ExitStack) -> None:
        self.name = name
        self._home = home / name
        self._wheels = wheels
        self._space = f"llmgw-install-{os.getpid()}-{name}"
        run("ip", "netns", "add", self._space)
        running.callback(run, "ip", "netns", "del", self._space)
        spaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        holder = subprocess.Popen(
            ["ip", "netns", "exec", self._space, *spaces, "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        running.callback(holder.wait)
        running.callback(holder.kill)
        assert holder.stdout is not None
        holder.stdout.readline()  # the namespaces are there
        (child,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        self._enter = ["nsenter", "--target", child, "--mount", "--pid"]
        closed = [place for place in _PYTHON.parents if not place.stat().st_mode & 0o001]
        for folder in {*_OVERLAID, *(place.parts[1] for place in closed)}:
            upper, work = self._home / folder, self._home / f"{folder}.work"
            upper.mkdir(parents=True)
            work.mkdir()
            layers = f"lowerdir=/{folder},upperdir={upper},workdir={work}"
            run(*self._enter, "mount", "-t", "overlay", "overlay", "-o", layers, f"/{folder}")
        for place in closed:  # a developer's Python may lie where a service does not get
            run(*self._enter, "chmod", "o+x", str(place))
        programs = self._home / "programs"
        programs.mkdir()
        (programs / "python3").symlink_to(_PYTHON)
        systemctl = programs / "systemctl"
        systemctl.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} systemctl "$@"\n')
        systemctl.chmod(0o755)
        self._exports: list[str] = []  # a reader goes on in one shell
        self._path = f"{programs}:{os.environ['PATH']}"

    def connect(self, device: str, address: str) -> None:
        run("ip", "link", "set", device, "netns", self._space)
        inside = ("ip", "-n", self._space)
        run(*inside, "address", "add", f"{address}/24", "dev", device)
        for name in (device, "lo"):
            run(*inside, "link", "set", name, "up")

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file of this machine as its operator would."""
        text = content.encode() if isinstance(content, str) else content
        words = f"mkdir -p {shlex.quote(str(Path(path).parent))}; cat > {shlex.quote(path)}"
        subprocess.run([*self._enter, "sh", "-c", words], input=text, check=True)

    def type(self, block: str) -> str:
        """Type a block of commands; return what they said."""
        commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
        # Where pip runs there is an index, which this test cannot put into a network of its own.
        online = any("pip install" in command for command in commands)
        network = () if online else ("ip", "netns", "exec", self._space)
        offered = f"{os.environ.get('PIP_FIND_LINKS', '')} {self._wheels}".strip()
        env = {
            **{name: value for name, value in os.environ.items() if not _OURS.match(name)},
            "PATH": self._path,
            "HOME": str(self._home),
            "PIP_FIND_LINKS": offered,
        }
        done = subprocess.run(
            [*network, *self._enter, "bash", "-e"],
            input="\n".join([*self._exports, *commands]),
            env=env,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        self._exports += [command for command in commands if command.startswith("export ")]
        if done.returncode != 0:
            logs = run(*self._enter, "sh", "-c", "tail -n 40 /var/log/llmgw-*.log || true")
            sys.exit(f"{self.name}: this fails\n{block}\n{done.stdout}{done.stderr}\n{logs}")
        return done.stdout


_OURS = re.compile(r"(LLMGW|PYTEST|PYTHON|VIRTUAL_ENV|NOX)")


def main() -> None:
    wheels = Path(sys.argv[1]).resolve()
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip", "runuser"))):
        sys.stdout.write("two machines: needs root, util-linux and iproute2\n")
        return
    text = PAGE.read_text()
    os.environ.pop("TMPDIR", None)  # nox puts it into the repository, where a service may not get
    with contextlib.ExitStack() as running:
        home = Path(running.enter_context(tempfile.TemporaryDirectory()))
        home.chmod(0o755)
        server, node = (Machine(name, home, wheels, running) for name in ("server", "node"))
        wires = [f"llmgw{os.getpid()}{end}"[-15:] for end in "ab"]
        run("ip", "link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
        server.connect(wires[0], "10.0.0.1")
        node.connect(wires[1], "10.0.0.2")
        write_tiny_gguf(home / "tiny.gguf")
        node.write("/srv/models/chat-q4.gguf", (home / "tiny.gguf").read_bytes())

        said = follow(server, text, "The server")
        (token,) = re.findall(r"^llmgw1\.\S+$", said, re.MULTILINE)
        node.write("/etc/llmgw/join.token", token)
        follow(node, text, "The node")
        ask = "curl --silent --fail --retry 60 --retry-delay 1 --retry-all-errors"
        model = (
            '{"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}'
        )
        url = "http://127.0.0.1:8080/v1/chat/completions"
        server.type(f"$ {ask} {url} -H 'content-type: application/json' -d '{model}'")
        said = follow(server, text, "Look")
        for word in ("ready", "serving", "another replica could start now"):
            if word not in said:
                sys.exit(f"the page's last look does not say {word!r}:\n{said}")


def follow(machine: Machine, text: str, title: str) -> str:
    """Do what a section of the page says, top down; return what the commands said."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    said = []
    for language, block in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL):
        if language == "console":
            said.append(machine.type(block))
        else:
            (path,) = re.findall(r"\A# (/\S+)\n", block)
            machine.write(path, block)
    return "".join(said)


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)}: {done.stderr}")
    return done.stdout


# --- the stand-in for systemd -----------------------------------------------------------------


def systemctl(words: list[str]) -> None:
    """Do what the page asks of systemd."""
    match words:
        case ["daemon-reload"]:
            pass
        case ["enable", "--now", name]:
            start(name)
        case _:
            sys.exit(f"systemctl {words}: not on the page")


def start(name: str) -> None:
    """Start a unit as systemd would, and return once it has reported to be ready."""
    lines = Path(f"/etc/systemd/system/{name}.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line)
    state = Path("/var/lib", unit["StateDirectory"])
    state.mkdir(exist_ok=True)
    shutil.chown(state, unit["User"], unit["User"])
    state.chmod(int(unit["StateDirectoryMode"], 8))
    with heard() as (address, ready), Path(f"/var/log/{name}.log").open("wb") as log:
        process = subprocess.Popen(
            ["runuser", "-u", unit["User"], "--", *shlex.split(unit["ExecStart"])],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(state),
                "NOTIFY_SOCKET": address,
            },
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=int(unit["UMask"], 8),
        )
        ready.settimeout(60)
        try:
            while b"READY=1" not in ready.recv(4096):
                pass
        except TimeoutError:
            sys.exit(f"{name} is not ready within a minute; exit code {process.poll()}")


@contextlib.contextmanager
def heard() -> Iterator[tuple[str, socket.socket]]:
    """Yield a socket that units report to, and its address."""
    address = f"/tmp/notify-{os.getpid()}-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(address)
        try:
            Path(address).chmod(0o777)
            yield address, ready
        finally:
            Path(address).unlink()


if __name__ == "__main__":
    systemctl(sys.argv[2:]) if sys.argv[1] == "systemctl" else main()
