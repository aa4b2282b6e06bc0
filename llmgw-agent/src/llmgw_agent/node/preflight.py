"""What must be true of all ranks of a replica before one of them loads anything. A shell.

A gang that cannot work fails after minutes of loading, on another rank than the one at fault,
and mostly by standing still. So each rank first listens on its own ports, as its engine will, and
asks every port of every other: that proves the address, the way there and back, the engine's
version and the weights. A rank is through once it has heard all and all have heard it.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
from anyio.abc import SocketStream

from llmgw.clock import Clock
from llmgw.domain.commands import Peer, ShardSpec
from llmgw.domain.replicas import Failure, FailureCause
from llmgw_agent.node.host import Report, StepFailed

_ASK_EVERY_S = 1.0
_ASK_LIMIT_S = 5.0
_LINE_LIMIT = 4096
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a rank says of itself."""

    replica: str
    rank: int
    engine: str  #: name and version
    weights: str  #: `fingerprint`


@dataclass(slots=True)
class _Meeting:
    """Which (rank, port) have been heard, and which (rank, port) of ours have been asked for."""

    heard: set[tuple[int, int]] = field(default_factory=set)
    asked: set[tuple[int, int]] = field(default_factory=set)
    problems: dict[int, str] = field(default_factory=dict)  #: newest, by rank not heard whole


def fingerprint(path: Path) -> str:
    """Return what differs for different weights: names, sizes and the first MiB of each file.

    Contents were verified when they were fetched; here the question is whether two nodes mean
    the same files. May block on a disk.
    """
    found = hashlib.sha256()
    files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    for file in files:
        name = file.name if file == path else str(file.relative_to(path))
        found.update(json.dumps([name, file.stat().st_size]).encode())
        with file.open("rb") as content:
            found.update(content.read(_HEAD_BYTES))
    return found.hexdigest()


async def meet(spec: ShardSpec, own: Presence, *, clock: Clock, report: Report) -> None:
    """Return once all ranks have met. Raises StepFailed naming the rank that is at fault.

    Safe to cancel: its ports are free again then. report: ranks met, of all others.
    """
    try:
        await _meet(spec, own, clock, report)
    except ExceptionGroup as group:
        raise _first_of(group) from None


def _first_of(group: ExceptionGroup) -> Exception:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


async def _meet(spec: ShardSpec, own: Presence, clock: Clock, report: Report) -> None:
    me = spec.peers[spec.rank]
    others = [peer for peer in spec.peers if peer.rank != spec.rank]
    expected = {(peer.rank, port) for peer in others for port in peer.ports}
    to_us = {(peer.rank, port) for peer in others for port in me.ports}
    meeting = _Meeting()
    deadline = clock.monotonic() + spec.start_limit_s
    async with anyio.create_task_group() as group:
        for port in me.ports:
            await group.start(_listen, me.address, port, own, meeting)
        while not (meeting.heard >= expected and meeting.asked >= to_us):
            await _ask_all(others, own, meeting)
            report(float(len({rank for rank, _ in meeting.heard})), float(len(others)))
            if clock.monotonic() > deadline:
                raise _failed(FailureCause.START_TIMEOUT, _who_is_missing(others, meeting, me))
            await clock.sleep(_ASK_EVERY_S)
        group.cancel_scope.cancel()


async def _listen(
    address: str,
    port: int,
    own: Presence,
    meeting: _Meeting,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    try:
        listener = await anyio.create_tcp_listener(local_host=address, local_port=port)
    except OSError as error:
        message = f"cannot listen on {address} port {port}: {error.strerror or error}"
        raise _failed(FailureCause.PORT_IN_USE, message) from error
    async with listener:
        task_status.started()
        await listener.serve(lambda stream: _answer(stream, port, own, meeting))


async def _answer(stream: SocketStream, port: int, own: Presence, meeting: _Meeting) -> None:
    """Say who we are to a rank of the same replica, and to nobody else."""
    async with stream:
        with anyio.move_on_after(_ASK_LIMIT_S):
            try:
                asker = json.loads(await _line(stream))
                if asker["replica"] != own.replica:
                    return
                await stream.send(_said(own))
                # The asker leaves first, so that the port is not kept in TIME_WAIT on this side.
                with suppress(anyio.EndOfStream):
                    await stream.receive(1)
                meeting.asked.add((int(asker["rank"]), port))
            except (ValueError, TypeError, KeyError, anyio.EndOfStream, anyio.BrokenResourceError):
                return  # a stranger


async def _ask_all(others: list[Peer], own: Presence, meeting: _Meeting) -> None:
    async with anyio.create_task_group() as group:
        for peer in others:
            for port in peer.ports:
                # Also those that were heard: one that began anew must hear us once more.
                group.start_soon(_ask, peer, port, own, meeting)


async def _ask(peer: Peer, port: int, own: Presence, meeting: _Meeting) -> None:
    try:
        with anyio.fail_after(_ASK_LIMIT_S):
            async with await anyio.connect_tcp(peer.address, port) as stream:
                await stream.send(_said(own))
                said = json.loads(await _line(stream))
        theirs = Presence(**said)
    except (OSError, TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
        why = str(error) or "no answer"
        meeting.problems[peer.rank] = f"port {port} of {peer.node} at {peer.address}: {why}"
        return
    except (ValueError, TypeError):
        meeting.problems[peer.rank] = f"port {port} of {peer.node} is answered by something else"
        return
    if theirs.engine != own.engine:
        raise _failed(
            FailureCause.ENGINE_MISSING,
            f"{peer.node} would run {theirs.engine}, this node {own.engine}",
            hint="give the profile a `version`, so that all ranks run the same",
        )
    if theirs.weights != own.weights:
        raise _failed(
            FailureCause.WEIGHTS_CORRUPT,
            f"{peer.node} has other weights under the same name",
            hint="pin a revision, or bring the files of both nodes into line",
        )
    meeting.heard.add((peer.rank, port))


async def _line(stream: SocketStream) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _LINE_LIMIT:
        data += await stream.receive(_LINE_LIMIT)
    return data


def _said(own: Presence) -> bytes:
    said = {name: getattr(own, name) for name in ("replica", "rank", "engine", "weights")}
    return json.dumps(said).encode() + b"\n"


def _who_is_missing(others: list[Peer], meeting: _Meeting, me: Peer) -> str:
    for peer in others:
        if any((peer.rank, port) not in meeting.heard for port in peer.ports):
            return f"rank {peer.rank} was not met: {meeting.problems.get(peer.rank, 'no answer')}"
    deaf = sorted({peer.node for peer in others} - {me.node})
    return f"this node reaches {', '.join(deaf)}, but is not reached at {me.address} from there"


def _failed(cause: FailureCause, message: str, *, hint: str = "") -> StepFailed:
    return StepFailed(Failure(cause=cause, message=message, hint=hint))
