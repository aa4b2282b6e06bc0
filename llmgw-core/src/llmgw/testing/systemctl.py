"""A stand-in for systemd on a machine that has none: `systemctl enable --now UNIT`, and no more.

Run as a program, with the standard library alone. It starts a unit as its file says, as its user,
and returns once it has reported to be ready.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_READY_S = 120.0


def main(words: list[str]) -> None:
    match words:
        case ["daemon-reload"]:
            pass
        case ["enable", "--now", name]:
            start(name)
        case _:
            sys.exit(f"systemctl {words}: the stand-in does not know it")


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
                # What a site's drop-in would set, such as a mirror of the package index.
                **{key: value for key, value in os.environ.items() if key.startswith(_SITE)},
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
        if not wait_ready(ready, process):
            sys.exit(f"{name} is not ready in time; exit code {process.poll()}")


_SITE = ("PIP_", "UV_", "HF_", "NO_PROXY", "LLMGW_AGENT__")


def wait_ready(ready: socket.socket, process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has reported within the limit, and not ended."""
    ready.settimeout(1)
    for _ in range(int(_READY_S)):
        try:
            if b"READY=1" in ready.recv(4096):
                return True
        except TimeoutError:
            if process.poll() is not None:
                return False
    return False


@contextlib.contextmanager
def heard() -> Iterator[tuple[str, socket.socket]]:
    """Yield a socket that programs report to, by `NOTIFY_SOCKET`, and its address."""
    address = f"/tmp/notify-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108 -- random
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(address)
        try:
            Path(address).chmod(0o777)
            yield address, ready
        finally:
            Path(address).unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
