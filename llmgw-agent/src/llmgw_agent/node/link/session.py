"""One session with one server, from registration to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

import anyio
import anyio.abc
import grpc.aio

from llmgw.clock import Clock
from llmgw.domain.commands import (
    AdaptShard,
    DrainShard,
    SleepShard,
    StartShard,
    StopShard,
    WakeShard,
)
from llmgw.domain.ids import SessionId
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.reports import Registration, Rejection
from llmgw.errors import TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.link.abilities import Abilities
from llmgw_agent.node.link.bulk import answer
from llmgw_agent.node.link.lag import LoopLag
from llmgw_agent.node.link.orders import Orders
from llmgw_agent.node.outbox import Outbox, Subscription
from llmgw_agent.wire.codec import DownDecoder, encode_up
from llmgw_agent.wire.frames import (
    AdmitPeer,
    BulkRequest,
    DownFrame,
    Goodbye,
    GoodbyeCode,
    HeartbeatReply,
    MalformedFrame,
    UnknownFrame,
    Unsupported,
    UpFrame,
    Welcome,
)
from llmgw_agent.wire.lanes import Lanes, LanesFull
from llmgw_agent.wire.service import Stub, read_message, reason_of

log = get_logger(__name__)

_WELCOME_LIMIT_S = 15.0
_MISSED_LIMIT = 3
_JITTER = 0.1  # of the told interval, so that a fleet's heartbeats spread
_PASSING = (GoodbyeCode.STOPPING, GoodbyeCode.SUPERSEDED, GoodbyeCode.SILENT)
_MAX_BULK = 32  # answers at a time; a server that asks for more has lost count


class Membership(Protocol):
    """Knows which cluster the node belongs to."""

    def foreign_cluster(self, cluster_id: str) -> str | None:
        """Return why a server of this cluster must not be obeyed; None if it may."""
        ...

    async def join(self, cluster_id: str) -> None:
        """Belong to this cluster from now on, if to none yet. Raises TransientError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What every session shares."""

    outbox: Outbox
    orders: Orders
    membership: Membership
    abilities: Abilities
    pool: Callable[[], str | None]  #: that a join token bound the node to
    authorities_seen: Callable[[str], None]  #: digest that a server says is in force
    lag: LoopLag
    clock: Clock
    random: Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a session ended."""

    reason: str
    code: str = ""  #: of the server's goodbye; "" if it said none
    up_s: float = 0.0  #: since the welcome

    @property
    def is_refusal(self) -> bool:
        """Whether dialling again will most likely end in the same way."""
        return self.code not in ("", *_PASSING)


class LinkSession:
    """One reader, one writer, one watchdog and two sources; the first to return ends it all.

    Reads and writes have no limits of their own: cancelling one would end the whole call.
    """

    def __init__(
        self, session: SessionId, stub: Stub, node: Node, *, welcomed: Callable[[], None]
    ) -> None:
        """welcomed: called when the server has taken the registration."""
        self._id = session
        self._stub = stub
        self._node = node
        self._welcomed = welcomed
        self._lanes = Lanes()
        self._decoder = DownDecoder()
        self._interval_s: float | None = None
        self._started = anyio.Event()
        self._up_since: float | None = None
        self._due = node.clock.monotonic() + _WELCOME_LIMIT_S
        self._sequence = 0
        self._inventory: NodeInventory | None = None
        self._bulk = anyio.CapacityLimiter(_MAX_BULK)
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> Ended:
        """Converse until the end. Raises nothing but cancellation."""
        call = self._stub.session(None)
        ended: Ended | None = None
        try:
            with self._node.outbox.subscribe() as subscription:
                self._register()
                async with anyio.create_task_group() as tasks:
                    self._tasks = tasks

                    async def lead(part: Callable[[], Awaitable[Ended]]) -> None:
                        nonlocal ended
                        outcome = await _guarded(part)
                        # Of several that end at once, a goodbye says most.
                        if ended is None or (outcome.code and not ended.code):
                            ended = outcome
                        tasks.cancel_scope.cancel()

                    tasks.start_soon(lead, lambda: self._read(call))
                    tasks.start_soon(lead, lambda: self._write(call))
                    tasks.start_soon(lead, lambda: self._report(subscription))
                    tasks.start_soon(lead, lambda: self._beat(subscription))
                    tasks.start_soon(lead, self._watch)
        finally:
            call.cancel()
        up_s = 0.0
        if self._up_since is not None:
            up_s = self._node.clock.monotonic() - self._up_since
        return replace(ended or Ended(reason="ended"), up_s=up_s)

    def _register(self) -> None:
        registration = self._registration()
        self._inventory = _lasting(registration.inventory)
        self._send(registration)

    def _register_if_changed(self) -> None:
        """What heartbeats do not carry (engines, weights, labels) changes rarely: then the whole
        registration goes up once more."""
        if _lasting(self._registration().inventory) != self._inventory:
            self._register()

    def _registration(self) -> Registration:
        registration = self._node.outbox.registration(self._id)
        if (pool := self._node.pool()) is None:
            return registration
        return replace(registration, inventory=replace(registration.inventory, pool=pool))

    def _send(self, frame: UpFrame) -> None:
        self._lanes.put_nowait(encode_up(frame))

    async def _read(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> Ended:
        while (data := await read_message(call)) is not None:
            try:
                frame = self._decoder.feed(data)
                ended = None if frame is None else await self._take(frame)
            except UnknownFrame as error:
                log.warning("frame not understood", session=self._id, what=str(error))
                self._send(Unsupported(what=str(error)))
                continue
            if ended is not None:
                return ended
        return Ended(reason="the server ended the session")

    async def _take(self, frame: DownFrame) -> Ended | None:
        match frame:
            case Welcome():
                return await self._welcome(frame)
            case Goodbye():
                return Ended(reason=frame.message, code=frame.code)
            case _ if self._interval_s is None:
                return Ended(reason="the server sent something before its welcome")
            case HeartbeatReply():
                self._heard()
                self._node.authorities_seen(frame.authorities)
            case (
                StartShard()
                | DrainShard()
                | StopShard()
                | SleepShard()
                | WakeShard()
                | AdaptShard()
            ):
                self._node.orders.put(frame, self._refuse)
            case BulkRequest():
                self._answer(frame)
            case AdmitPeer():
                if (sharing := self._node.abilities.sharing) is not None:
                    sharing.admit(frame.node, frame.manifest, for_s=frame.for_s)
            case Unsupported():
                log.warning("server does not know what it was sent", what=frame.what)
        return None

    def _refuse(self, rejection: Rejection) -> None:
        with suppress(LanesFull):  # the next heartbeat notices, and ends the session
            self._send(rejection)

    async def _welcome(self, welcome: Welcome) -> Ended | None:
        if reason := self._node.membership.foreign_cluster(welcome.cluster_id):
            return Ended(reason=reason, code=GoodbyeCode.OTHER_CLUSTER)
        await self._node.membership.join(welcome.cluster_id)
        self._interval_s = max(0.01, welcome.heartbeat_interval_s)
        self._up_since = self._node.clock.monotonic()
        self._heard()
        self._started.set()
        self._node.authorities_seen(welcome.authorities)
        self._welcomed()
        return None

    def _answer(self, request: BulkRequest) -> None:
        if self._tasks is not None and self._bulk.available_tokens:
            self._tasks.start_soon(self._answer_one, request)

    async def _answer_one(self, request: BulkRequest) -> None:
        async with self._bulk:
            await answer(request, self._stub, self._node.abilities)

    def _heard(self) -> None:
        if self._interval_s is not None:
            allowed_s = _MISSED_LIMIT * self._interval_s * (1 + _JITTER)
            self._due = self._node.clock.monotonic() + allowed_s

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> Ended:
        while (messages := await self._lanes.get()) is not None:
            for message in messages:
                await call.write(message)
        return Ended(reason="nothing is left to say")

    async def _report(self, subscription: Subscription) -> Ended:
        await self._started.wait()
        while True:
            reports = await subscription.next_reports()
            # First the node's own news, from which those of its shards may follow: a server that
            # sees engines stop must know by then that their agent is leaving.
            self._register_if_changed()
            for report in reports:
                await self._lanes.put_report(encode_up(report))

    async def _beat(self, subscription: Subscription) -> Ended:
        await self._started.wait()
        while True:
            interval_s = self._interval_s or 0.0
            wait_s = interval_s * self._node.random.uniform(1 - _JITTER, 1 + _JITTER)
            await self._node.clock.sleep(wait_s)
            self._sequence += 1
            self._send(
                subscription.heartbeat(
                    self._id, self._sequence, loop_lag_ms=self._node.lag.take_worst_ms()
                )
            )
            self._register_if_changed()

    async def _watch(self) -> Ended:
        clock = self._node.clock
        while (left_s := self._due - clock.monotonic()) > 0:
            step_s = self._interval_s or 1.0  # what is due may come nearer meanwhile
            wait_s = min(left_s, step_s)
            woken_at = clock.monotonic() + wait_s
            await clock.sleep(wait_s)
            if clock.monotonic() - woken_at > step_s / 2:
                # It was this agent that stood still; the server's replies may wait unread.
                self._heard()
        if self._interval_s is None:
            return Ended(reason=f"no welcome within {_WELCOME_LIMIT_S:.0f} s")
        return Ended(reason=f"no reply to {_MISSED_LIMIT} heartbeats")


async def _guarded(part: Callable[[], Awaitable[Ended]]) -> Ended:
    """Return how a part ended, foreign errors told in a person's words."""
    try:
        return await part()
    except grpc.aio.AioRpcError as error:
        return Ended(reason=reason_of(error))
    except asyncio.InvalidStateError:
        return Ended(reason="the server ended the call")
    except LanesFull:
        return Ended(reason="the server reads nothing")
    except MalformedFrame as error:
        return Ended(reason=f"not understood: {error}")
    except TransientError as error:
        return Ended(reason=str(error))


def _lasting(inventory: NodeInventory) -> NodeInventory:
    """Return the part of an inventory that heartbeats do not carry."""
    return replace(inventory, devices=(), ram_available_mib=None, disk_free_mib=None)
