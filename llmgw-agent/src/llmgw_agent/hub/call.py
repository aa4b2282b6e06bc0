"""One call of Session, from its first frame to its last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
import grpc.aio

from llmgw.clock import Clock
from llmgw.contracts.sinks import ReportSink
from llmgw.contracts.trust import NodeTrust
from llmgw.domain.reports import Heartbeat, Registration, Rejection, ShardReport
from llmgw.logs import Logger, get_logger
from llmgw_agent.hub.admissions import PeerAdmissions
from llmgw_agent.hub.admittance import foreign, refuse, speaks_for_others
from llmgw_agent.hub.authorities import AuthorityWatch
from llmgw_agent.hub.identity import Identity, Member
from llmgw_agent.hub.refusals import Refusals
from llmgw_agent.hub.sessions import Session, Sessions
from llmgw_agent.wire.codec import UpDecoder, encode_down
from llmgw_agent.wire.frames import (
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
from llmgw_agent.wire.service import ByteStream, read_message

log = get_logger(__name__)

_HELLO_LIMIT_S = 10.0
_GOODBYE_LIMIT_S = 2.0
_MISSED_LIMIT = 3
_JITTER = 0.1  # by which an agent may stretch the interval that it was told
_SPREAD_NODES_PER_S = 200.0  # heartbeats that one server takes at 8 % of a core (measured)

# What this server asks of agents beyond the first release's commands.
CAPABILITIES = frozenset({"logs", "weights", "engines"})


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What every call shares."""

    trust: NodeTrust
    clock: Clock
    reports: ReportSink
    server_version: str
    heartbeat_s: float  #: shortest interval that agents are told
    node_count_hint: int
    authorities: AuthorityWatch
    admissions: PeerAdmissions
    sessions: Sessions = field(default_factory=Sessions)
    refusals: Refusals = field(default_factory=Refusals)

    @property
    def interval_s(self) -> float:
        """Return how often an agent that comes now is to send heartbeats."""
        nodes = max(self.node_count_hint, len(self.sessions))
        return max(self.heartbeat_s, nodes / _SPREAD_NODES_PER_S)


class SessionCall:
    """One reader, one writer, one watchdog; the first of them with a reason ends the call.

    Reads and writes have no limits of their own: cancelling one would end the whole call.
    """

    def __init__(self, context: ByteStream, identity: Identity, house: House) -> None:
        self._context = context
        self._identity = identity
        self._house = house
        self._lanes = Lanes()
        self._decoder = UpDecoder()
        self._session: Session | None = None
        self._admitted = anyio.Event()
        self._interval_s = house.interval_s
        self._due = house.clock.monotonic() + _HELLO_LIMIT_S
        self._written = anyio.Event()
        self._has_left = False
        self._log: Logger = log

    async def run(self) -> None:
        goodbye: Goodbye | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                async with anyio.create_task_group() as parts:

                    async def lead(part: Callable[[], Awaitable[Goodbye | None]]) -> None:
                        nonlocal goodbye
                        goodbye = await part()
                        parts.cancel_scope.cancel()

                    for part in (self._read, self._watch, self._wait_ended):
                        parts.start_soon(lead, part)
                self._leave(goodbye)
                # The writer ends by itself: a write that is cancelled leaves the call in a state
                # in which gRPC cannot even send its end.
                self._say_last(goodbye)
                with anyio.move_on_after(_GOODBYE_LIMIT_S):
                    await self._written.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._leave(goodbye)

    def _say_last(self, goodbye: Goodbye | None) -> None:
        if goodbye is not None:
            with suppress(LanesFull):
                self._lanes.put_nowait(encode_down(goodbye))
        self._lanes.close()

    def _leave(self, goodbye: Goodbye | None) -> None:
        """Tell everybody that the session is over. The first call counts."""
        if self._has_left:
            return
        self._has_left = True
        session = self._session
        if session is None:
            if goodbye is not None:
                self._house.refusals.note(
                    code=goodbye.code,
                    reason=goodbye.message,
                    peer=self._context.peer(),
                    now=self._house.clock.monotonic(),
                )
            return
        session.end(goodbye)
        if self._house.sessions.remove(session):
            self._house.reports.disconnected(session.node, session.id)
            # The control plane tells the operator what that means for the node.
            self._log.debug("session ended", reason=goodbye.code if goodbye else "connection")

    async def _read(self) -> Goodbye | None:
        while (data := await read_message(self._context)) is not None:
            try:
                frame = self._decoder.feed(data)
                goodbye = None if frame is None else self._take(frame)
            except UnknownFrame as error:
                self._log.warning("frame not understood", what=str(error))
                goodbye = self._answer(Unsupported(what=str(error)))
            except MalformedFrame as error:
                goodbye = Goodbye(code=GoodbyeCode.MALFORMED, message=str(error))
            if goodbye is not None:
                return goodbye
        return None

    def _take(self, frame: UpFrame) -> Goodbye | None:
        """Pass one frame on; return why the session must end, if it must."""
        session = self._session
        if session is None:
            if isinstance(frame, Registration):
                return self._register(frame)
            return Goodbye(code=GoodbyeCode.MALFORMED, message="the first frame is no registration")
        if not session.is_live:
            return session.goodbye
        match frame:
            case Registration():
                return self._refresh(session, frame)
            case Heartbeat():
                return self._beat(session, frame)
            case ShardReport():
                if goodbye := foreign(frame.shard.node, session.node):
                    return goodbye
                self._house.reports.shard_reported(session.node, session.id, frame)
            case Rejection():
                if goodbye := foreign(frame.node, session.node):
                    return goodbye
                self._house.reports.rejected(frame)
            case Unsupported():
                self._log.warning("agent does not know what it was sent", what=frame.what)
        return None

    def _register(self, registration: Registration) -> Goodbye | None:
        house, node = self._house, registration.inventory.node
        live = house.sessions.of(node)
        goodbye = refuse(
            registration,
            identity=self._identity,
            cluster_id=house.trust.cluster_id,
            server_version=house.server_version,
            revoked=house.trust.revoked(node),
            live=(live.uid, live.id) if live else None,
        )
        if goodbye is not None:
            return goodbye
        registration = self._bound(registration)
        self._session = Session(
            id=registration.session, inventory=registration.inventory, lanes=self._lanes
        )
        self._log = log.bind(node=node, session=registration.session)
        if live is not None:
            live.end(
                Goodbye(code=GoodbyeCode.SUPERSEDED, message=f"by session {registration.session}")
            )
            house.reports.disconnected(live.node, live.id)
        house.sessions.put(self._session)
        self._interval_s = house.interval_s
        self._heard()
        self._admitted.set()
        self._log.debug("session began", peer=self._context.peer())
        welcome = Welcome(
            heartbeat_interval_s=self._interval_s,
            cluster_id=house.trust.cluster_id,
            server_version=house.server_version,
            capabilities=registration.inventory.capabilities & CAPABILITIES,
            authorities=house.authorities.digest,
        )
        # Before the sink hears of the node: its first command must not overtake the welcome.
        goodbye = self._answer(welcome)
        house.reports.registered(registration)
        return goodbye

    def _refresh(self, session: Session, registration: Registration) -> Goodbye | None:
        """Take a registration in mid-session: the inventory changed."""
        if registration.session != session.id:
            return Goodbye(code=GoodbyeCode.MALFORMED, message="a second session within one call")
        if goodbye := speaks_for_others(registration, session.node):
            return goodbye
        registration = self._bound(registration)
        session.inventory = registration.inventory
        self._house.reports.registered(registration)
        return None

    def _bound(self, registration: Registration) -> Registration:
        """Return it with the pool that the node was let into, whatever it says itself."""
        pool = self._identity.pool if isinstance(self._identity, Member) else None
        if pool in (None, registration.inventory.pool):
            return registration
        self._log.warning(
            "node claims another pool than its own",
            node=registration.inventory.node,
            claimed=registration.inventory.pool,
            pool=pool,
        )
        return replace(registration, inventory=replace(registration.inventory, pool=pool))

    def _beat(self, session: Session, beat: Heartbeat) -> Goodbye | None:
        if beat.session != session.id:
            return None  # of a session that ended: neither its readings nor its pulse count
        if reason := self._house.trust.revoked(session.node):
            return Goodbye(
                code=GoodbyeCode.REVOKED, message=f"node {session.node} is revoked: {reason}"
            )
        self._heard()
        self._house.reports.heartbeat(session.node, beat)
        return self._answer(
            HeartbeatReply(sequence=beat.sequence, authorities=self._house.authorities.digest)
        )

    def _answer(self, frame: Welcome | HeartbeatReply | Unsupported) -> Goodbye | None:
        try:
            self._lanes.put_nowait(encode_down(frame))
        except LanesFull:
            return Goodbye(code=GoodbyeCode.SILENT, message="the agent reads nothing")
        return None

    def _heard(self) -> None:
        allowed_s = _MISSED_LIMIT * self._interval_s * (1 + _JITTER)
        self._due = self._house.clock.monotonic() + allowed_s

    async def _write(self) -> None:
        # A call that ends under a write is gRPC's InternalError, of which only the write knows: it
        # is no fault of anybody's. The reader has the end as well, and ends the session.
        with suppress(grpc.aio.InternalError):
            while (messages := await self._lanes.get()) is not None:
                for message in messages:
                    await self._context.write(message)
        self._written.set()

    async def _watch(self) -> Goodbye:
        clock = self._house.clock
        while (left_s := self._due - clock.monotonic()) > 0:
            wait_s = min(left_s, self._interval_s)  # what is due may come nearer meanwhile
            woken_at = clock.monotonic() + wait_s
            await clock.sleep(wait_s)
            if clock.monotonic() - woken_at > self._interval_s / 2:
                # It was we who stood still (stopped, suspended, a blocked loop): what the agent
                # sent meanwhile has not been read yet, so its silence says nothing.
                self._heard()
        return Goodbye(
            code=GoodbyeCode.SILENT,
            message="no heartbeat for three intervals" if self._session else "no registration",
        )

    async def _wait_ended(self) -> Goodbye | None:
        while (session := self._session) is None:
            await self._admitted.wait()
        await session.ended.wait()
        return session.goodbye
