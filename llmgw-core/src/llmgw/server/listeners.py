"""Listening sockets: all of them bound before anything starts, or none."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from llmgw.config.addresses import Address
from llmgw.errors import ConfigError, Problem

_BACKLOG = 2048


@contextmanager
def bound(addresses: Mapping[str, str]) -> Iterator[dict[str, socket.socket]]:
    """Bind and listen at every address, by name of its setting; close all at the end.

    Raises ConfigError naming each address that cannot be bound, after releasing the others.
    """
    with ExitStack() as stack:
        sockets: dict[str, socket.socket] = {}
        problems: list[Problem] = []
        for name, text in addresses.items():
            try:
                sockets[name] = stack.enter_context(listen(Address.parse(text)))
            except OSError as error:
                problems.append(Problem(path=name, message=_why(name, text, error)))
        if problems:
            raise ConfigError("listeners", problems)
        yield sockets


def listen(address: Address, *, shared: bool = False) -> socket.socket:
    """Return a listening socket. shared: other processes may bind the same port.

    Raises OSError, also where the name of the host is not known.
    """
    family, kind, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The protocol is given because asyncio turns Nagle's delay off only where it is: without,
    # every answer on plain asyncio waits 40 ms for a delayed acknowledgement.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setblocking(False)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> Address:
    """Return where it really listens: port 0 has become a port, unless it is a UNIX socket."""
    if listener.family == socket.AF_UNIX:
        return Address("localhost", 0)
    host, port, *_ = listener.getsockname()
    return Address(host, port)


def listen_unix(path: Path) -> socket.socket:
    """Return a listening UNIX socket that only this user can reach."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def shared(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Open `count` listening sockets on one port, among which the kernel spreads connections.

    Bound once without sharing before, so that a port that somebody else has is an error.
    Raises ConfigError likewise.
    """
    with bound({"listen": address}) as first:
        free = address_of(first["listen"])
    with ExitStack() as stack:
        yield [stack.enter_context(listen(free, shared=True)) for _ in range(count)]


def check_free(name: str, text: str) -> None:
    """Raise ConfigError if somebody else will bind `text` in a moment and cannot.

    name: of its setting. A UNIX socket that nobody listens on any more is removed.
    """
    try:
        if text.startswith("unix:"):
            _check_socket_file(Path(text.removeprefix("unix:")))
        else:
            listen(Address.parse(text)).close()
    except OSError as error:
        raise ConfigError(
            "listeners", [Problem(path=name, message=_why(name, text, error))]
        ) from error


def _check_socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _why(name: str, text: str, error: OSError) -> str:
    flag = f"--{name.replace('_', '-')}"
    if error.errno == errno.EADDRINUSE:
        return f"{text} is already in use; stop what listens there, or choose another by {flag}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{text} may not be bound by this user; take a port above 1023 by {flag}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{text} is no address of this machine; choose another by {flag}"
    if isinstance(error, socket.gaierror):
        return f"the host of {text} is not known; choose another by {flag}"
    return f"{text} cannot be bound: {error.strerror or error}"
