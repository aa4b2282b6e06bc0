"""The machine itself: processors, memory, disk, identity. Read from the kernel, on Linux."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path


def machine_id() -> str:
    """Return what two agents of one machine agree on, and no other machine has.

    A hash, since the machine's own id is meant to stay on it. Containers made from one image
    may share that id: the boot id tells them apart.
    """
    parts = []
    for source in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            parts.append(Path(source).read_text().strip())
            break
        except OSError:
            continue
    if not any(parts):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), socket.gethostname()]
    return hashlib.sha256("llmgw\0".join(parts).encode()).hexdigest()[:32]


def cpu_count() -> int:
    """Return the processors that this agent and its engines may use."""
    return len(os.sched_getaffinity(0))


def memory_mib() -> tuple[int, int | None]:
    """Return (RAM in all, RAM available without swapping); None: the kernel does not say."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) // 1024
    return fields.get("MemTotal", 0), fields.get("MemAvailable")
