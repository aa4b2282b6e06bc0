"""Machines as network namespaces, for tests of what a network does. Needs root, iproute2, nftables.

The test itself, and what it starts without a prefix, lives in the hub; each machine has a wire to
it, and reaches the others through it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess


def can_make_wires() -> bool:
    """Whether this user and machine can."""
    return os.geteuid() == 0 and bool(shutil.which("ip") and shutil.which("nft"))


class Wires:
    """A hub and some machines."""

    def __init__(self, name: str, machines: tuple[str, ...]) -> None:
        """name: of no other network on this host; a few characters."""
        self._name = name
        self._machines = machines
        self._made: list[str] = []
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)

    def make(self) -> None:
        """Make them, and move this thread into the hub."""
        for space in ("hub", *self._machines):
            _run("ip", "netns", "add", self._space(space))
            self._made.append(self._space(space))
            _run("ip", "-n", self._space(space), "link", "set", "lo", "up")
        for number, machine in enumerate(self._machines):
            hub, space = self._space("hub"), self._space(machine)
            wire = f"to-{machine}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "-n", hub, "link", "add", wire, *peer)
            for where, device, end in ((hub, wire, 1), (space, "eth0", 2)):
                address = f"10.99.{number}.{end}/24"
                _run("ip", "-n", where, "address", "add", address, "dev", device)
                _run("ip", "-n", where, "link", "set", device, "up")
            _run("ip", "-n", space, "route", "add", "default", "via", self.hub(machine))
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run(*self.inside("hub"), "sh", "-c", forward)
        _enter(f"/run/netns/{self._space('hub')}")

    def remove(self) -> None:
        _enter(f"/proc/self/fd/{self._home}")
        os.close(self._home)
        for space in self._made:
            _run("ip", "netns", "del", space)

    def address(self, machine: str) -> str:
        return f"10.99.{self._machines.index(machine)}.2"

    def hub(self, machine: str) -> str:
        """The hub's address on the wire of this machine."""
        return f"10.99.{self._machines.index(machine)}.1"

    def inside(self, machine: str) -> tuple[str, ...]:
        """What to put before a command that shall run there."""
        return ("ip", "netns", "exec", self._space(machine))

    def drop(
        self, machine: str, match: str, *, outgoing: bool = True, incoming: bool = True
    ) -> None:
        """Let matching packets over its wire vanish, instead of those before.

        match: in nft's words, with `X` for `dport` or `sport`, which is tried as both.
        """
        rules = ["table inet chaos {}", "delete table inet chaos", "table inet chaos {"]
        for hook, wanted, device in (
            ("output", outgoing, "oifname"),
            ("input", incoming, "iifname"),
        ):
            if wanted:
                rules.append(f"chain {hook} {{ type filter hook {hook} priority 0;")
                ports = ("dport", "sport") if "X" in match else ("",)
                rules += [f'{device} "eth0" {match.replace("X", port)} drop;' for port in ports]
                rules.append("}")
        rules.append("}")
        _run(*self.inside(machine), "nft", "-f", "-", input="\n".join(rules))

    def heal(self, machine: str) -> None:
        _run(*self.inside(machine), "nft", "flush", "ruleset")

    def _space(self, machine: str) -> str:
        return f"{self._name}-{machine}"


def _run(*argv: str, input: str | None = None) -> None:  # noqa: A002 -- as subprocess names it
    subprocess.run(argv, check=True, capture_output=True, timeout=10, text=True, input=input)


def _enter(path: str) -> None:
    """Move this thread into a network namespace; what it starts from then on begins there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(descriptor)
