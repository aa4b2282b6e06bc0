"""The router's end of the feed: holds one to each server, obeys the right one, reports back."""

from __future__ import annotations

import random
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import anyio
import httpx
from anyio import TASK_STATUS_IGNORED, to_thread
from anyio.abc import TaskStatus

from llmgw.adminapi.feed_messages import (
    NOT_YET,
    PULSE_S,
    FeedSnapshot,
    FeedSpend,
    RouterReport,
    decode_line,
    decode_shares,
    encode_report,
)
from llmgw.clock import Clock
from llmgw.contracts.sinks import CatalogSink, EndpointSink, UsageSource
from llmgw.domain.ids import ModelName
from llmgw.domain.secret import Secret
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.logs import get_logger
from llmgw.router.feed.choice import newest
from llmgw.router.feed.last_table import LastTable
from llmgw.router.keys import KeyTable
from llmgw.router.usage import UsageLedger

log = get_logger(__name__)

_FEED_PATH = "/admin/v1/feed"
_REPORT_PATH = "/admin/v1/feed/usage"
_REPORT_S = 1.0
_SAVE_S = 1.0
_LINE_BYTES = 64 * 1024 * 1024
_LONGEST_PAUSE_S = 30.0


class Fed(EndpointSink, CatalogSink, UsageSource, Protocol):
    """The router, as its feed sees it."""

    @property
    def keys(self) -> KeyTable: ...

    @property
    def ledger(self) -> UsageLedger: ...

    def wants(self) -> RouterWants: ...

    def take_shares(self, shares: RouterShares) -> None: ...


class _Feed:
    """What is known of one server."""

    __slots__ = ("address", "client", "is_live", "snapshot")

    def __init__(self, address: str, client: httpx.AsyncClient) -> None:
        self.address = address
        self.client = client
        self.is_live = False
        self.snapshot: FeedSnapshot | None = None


def feed_client(address: str, *, trust: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    """Return a client for a server: `http(s)://HOST:PORT` or `unix:PATH`. No proxy lies between.

    trust: whose certificates are believed; None: the machine's own roots.
    """
    limit = httpx.Timeout(5.0, read=3 * PULSE_S)
    if address.startswith("unix:"):
        transport = httpx.AsyncHTTPTransport(uds=address.removeprefix("unix:"))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=limit)
    verify = True if trust is None else trust
    return httpx.AsyncClient(base_url=address, trust_env=False, timeout=limit, verify=verify)


class FeedClient:
    """Feeds a router. Also its `Nudge`: what is nudged goes up with the next report, at once."""

    def __init__(
        self,
        servers: Sequence[str],
        token: Secret,
        router: Fed,
        clock: Clock,
        *,
        last_table: LastTable | None = None,
        connect: Callable[[str], httpx.AsyncClient] = feed_client,
        has_in_force: Callable[[], bool] = lambda: True,
        only_leader: bool = False,
    ) -> None:
        """last_table: None keeps nothing on disk.

        has_in_force: whether what was last published to `router` is what it serves; where that
        takes time. only_leader: reports go to no follower, which would only pass them on.
        """
        self._token = token
        self._router = router
        self._clock = clock
        self._has_in_force = has_in_force
        self._only_leader = only_leader
        self._last_table = last_table
        self._feeds = [_Feed(address, connect(address)) for address in servers]
        self._applied: FeedSnapshot | None = None
        self._saved: FeedSnapshot | None = None
        self._shares: RouterShares | None = None
        self._shared_by: _Feed | None = None
        self._nudges: set[ModelName] = set()
        self._reporting = anyio.Event()
        self._id = secrets.token_hex(8)
        self._jitter = random.Random()  # noqa: S311 - spreads reconnects, protects nothing

    @property
    def is_stale(self) -> bool:
        """True while no server's feed is up: the table in force is the last good one."""
        return not any(feed.is_live for feed in self._feeds)

    @property
    def has_shares(self) -> bool:
        """Whether a server has ever said what this router may use."""
        return self._shares is not None

    def nudge(self, model: ModelName) -> None:
        """Ask the servers to wake a model."""
        self._nudges.add(model)
        self._reporting.set()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Serve the table on disk, then follow the servers until cancelled."""
        if self._last_table is not None:
            last = await to_thread.run_sync(self._last_table.load)
            if last is not None:
                self._saved = last
                self._apply(last)
                log.info("serving the table on disk", epoch=last.epoch, server=last.server)
        async with anyio.create_task_group() as tasks:
            for feed in self._feeds:
                tasks.start_soon(self._follow, feed)
            tasks.start_soon(self._report_often)
            tasks.start_soon(self._save_often)
            task_status.started()

    # -- following -------------------------------------------------------------------------

    async def _follow(self, feed: _Feed) -> None:
        attempt = 0
        async with feed.client:
            while True:
                problem = "the feed ended"
                try:
                    async for line in self._lines(feed):
                        attempt = 0
                        self._take(feed, line)
                except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                    problem = str(error) or type(error).__name__
                except ValueError as error:
                    problem = f"the server sends what is no feed: {error}"
                if feed.is_live or attempt == 0:
                    log.warning("feed lost", server=feed.address, problem=problem)
                feed.is_live = False
                self._settle()
                attempt += 1
                pause_s = min(_LONGEST_PAUSE_S, 2.0 ** min(attempt, 8))
                await self._clock.sleep(self._jitter.uniform(0.0, pause_s))

    async def _lines(self, feed: _Feed) -> AsyncIterator[bytes]:
        """Yield lines as bytes: httpx's own splits at U+2028, which JSON may hold."""
        async with feed.client.stream("GET", _FEED_PATH, headers=self._headers()) as reply:
            if reply.status_code != httpx.codes.OK:
                raise httpx.HTTPError(_why_refused(reply.status_code))
            rest = bytearray()
            async for chunk in reply.aiter_bytes():
                searched = len(rest)  # of a table of megabytes no piece is gone through twice
                rest += chunk
                while (end := rest.find(b"\n", searched)) >= 0:
                    line = bytes(rest[:end])
                    del rest[: end + 1]
                    searched = 0
                    yield line
                if len(rest) > _LINE_BYTES:
                    raise ValueError(f"a line of more than {_LINE_BYTES} bytes")

    def _take(self, feed: _Feed, line: bytes) -> None:
        message = decode_line(line)
        if not feed.is_live:
            feed.is_live = True
            log.info("feed up", server=feed.address)
        if isinstance(message, FeedSnapshot):
            if feed.snapshot is None:
                self._reporting.set()  # to learn soon what we may use
            feed.snapshot = message
            self._settle()
        elif isinstance(message, FeedSpend):
            self._router.keys.learn(message.spend)

    def _settle(self) -> None:
        """Apply the snapshot that counts now, if it is another one."""
        live = [feed.snapshot for feed in self._feeds if feed.is_live and feed.snapshot is not None]
        chosen = newest(live, self._applied)
        if chosen is not None and chosen is not self._applied:
            self._apply(chosen)

    def _apply(self, snapshot: FeedSnapshot) -> None:
        before, self._applied = self._applied, snapshot
        # Each is swapped only if it changed. Keys first: one that has been revoked must not
        # see one more table.
        if before is None or before.keys != snapshot.keys:
            self._router.keys.replace(snapshot.keys)
        if before is None or (before.models, before.epoch) != (snapshot.models, snapshot.epoch):
            self._router.publish_catalog(snapshot.models, snapshot.epoch)
        if before is None or (before.endpoints, before.epoch) != (
            snapshot.endpoints,
            snapshot.epoch,
        ):
            self._router.publish_endpoints(snapshot.endpoints, snapshot.epoch)

    # -- reporting -------------------------------------------------------------------------

    async def _report_often(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._remind)
            while True:
                await self._reporting.wait()
                self._reporting = anyio.Event()
                await self._report()

    async def _remind(self) -> None:
        while True:
            await self._clock.sleep(_REPORT_S)
            self._reporting.set()

    async def _report(self) -> None:
        feed = self._listener()
        if feed is None:
            return
        nudges, self._nudges = self._nudges, set()
        batch = self._router.ledger.batch()
        report = RouterReport(
            router=self._id,
            applied=self._in_force(feed),
            usage=self._router.usage(),
            batch=batch,
            nudges=tuple(sorted(nudges)),
            wants=self._router.wants(),
            serial=self._shares.serial if self._shares and self._shared_by is feed else None,
            routers=self._shares.routers if self._shares else 1,
        )
        try:
            reply = await feed.client.post(
                _REPORT_PATH, content=encode_report(report), headers=self._headers()
            )
        except httpx.HTTPError as error:
            log.debug("report not taken", server=feed.address, problem=str(error))
            reply = None
        if reply is not None and reply.is_success:
            self._take_shares(feed, reply.content)
            if batch is not None:
                self._router.ledger.settle(batch.id)
        else:
            # Told again with the next report; the batch is kept by the ledger.
            self._nudges |= nudges

    def _in_force(self, feed: _Feed) -> int | None:
        applied = self._applied
        if applied is None or applied is not feed.snapshot:
            return None
        return applied.serial if self._has_in_force() else NOT_YET

    def _take_shares(self, feed: _Feed, answer: bytes) -> None:
        try:
            shares = decode_shares(answer)
        except ValueError as error:
            log.debug("shares not understood", server=feed.address, problem=str(error))
            return
        self._shares, self._shared_by = shares, feed
        self._router.take_shares(shares)

    def _listener(self) -> _Feed | None:
        """Return the server that reports go to: the leader, else any, which passes them on if it
        can."""
        live = [feed for feed in self._feeds if feed.is_live and feed.snapshot is not None]
        leading = [feed for feed in live if feed.snapshot is not None and feed.snapshot.leading]
        return max(
            leading if leading or self._only_leader else live,
            key=lambda feed: feed.snapshot.epoch if feed.snapshot else 0,
            default=None,
        )

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token.reveal()}"}

    # -- keeping ---------------------------------------------------------------------------

    async def _save_often(self) -> None:
        while True:
            await self._clock.sleep(_SAVE_S)
            applied = self._applied
            if self._last_table is not None and applied is not None and applied is not self._saved:
                await to_thread.run_sync(self._last_table.save, applied)
                self._saved = applied


def _why_refused(status: int) -> str:
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return (
            f"the server refuses the token (status {status}); the feed needs an admin token, "
            "such as that in its <state_dir>/admin.token: give it with --token-file"
        )
    return f"the server answers with status {status}"
