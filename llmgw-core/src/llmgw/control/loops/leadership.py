"""Keeps trying to lead, on a thread of its own, and steps down in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskStatus

from llmgw.clock import Clock
from llmgw.contracts.leases import Lease, LeaseStore
from llmgw.control.observe import Stores
from llmgw.errors import LlmgwError, TransientError
from llmgw.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

RENEW_EVERY_S = 5.0
TRY_EVERY_S = 2.0
#: Nobody is judged lost for this long after a leadership began or the store came back.
GRACE_S = 90.0


class Call(Protocol):
    """Asks something that may block, and returns its answer."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


class LeadershipLoop:
    """Acquires, renews and releases the lease; the stores hold until when it may be acted on."""

    def __init__(
        self,
        stores: Stores,
        lease_store: LeaseStore,
        *,
        holder: str,
        clock: Clock,
        jitter: Callable[[], float],
        call: Call | None = None,
    ) -> None:
        """jitter: 0.0 to 1.0, so that candidates do not try in step. call: how the lease store
        is asked; None: on a thread of its own, since a frozen store must block neither the loop
        nor other store calls.
        """
        self._stores = stores
        self._lease_store = lease_store
        self._holder = holder
        self._clock = clock
        self._jitter = jitter
        self._call: Call = call or _OneThread()
        self._lease: Lease | None = None
        self._failed = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Try until cancelled; then give the lease back, so that another need not wait for it."""
        started = False
        try:
            while True:
                await self.try_once()
                if not started:
                    task_status.started()
                    started = True
                pause_s = RENEW_EVERY_S if self._lease else TRY_EVERY_S + self._jitter()
                await self._clock.sleep(pause_s)
        finally:
            with anyio.move_on_after(2.0, shield=True):
                await self.release()

    async def try_once(self) -> None:
        """Renew the lease, or try to take it."""
        # Counted from before the call: the store's clock started at the latest when it returned.
        began = self._clock.monotonic()
        try:
            if self._lease is not None:
                await self._renew(self._lease, began)
            else:
                await self._acquire(began)
        except LlmgwError as error:
            self._note_failure(error)
            return
        if self._failed:
            self._failed = False
            # While the store was away this server may have been cut off from more than that.
            self._stores.inventory.grant_grace(self._clock.monotonic() + GRACE_S)
            log.info("leadership store is back")

    async def _acquire(self, began: float) -> None:
        lease = await self._ask(lambda: self._lease_store.acquire(self._holder))
        if lease is None:
            leader = await self._ask(self._lease_store.leader)
            if leader != self._stores.leadership.leader:
                log.info("another server leads", leader=leader)
            self._stores.leadership.lost(leader)
            return
        self._lease = lease
        self._stores.leadership.held(lease, since=began)
        self._stores.desired.begin_leadership()
        self._stores.inventory.grant_grace(self._clock.monotonic() + GRACE_S)
        self._stores.wake.ring()
        log.info("leadership began", holder=self._holder, term=lease.term, epoch=lease.epoch)
        if self._stores.leadership.highest_epoch > lease.epoch:
            log.error(
                "nodes have seen a newer leadership and will refuse this one",
                epoch=lease.epoch,
                seen=self._stores.leadership.highest_epoch,
                hint="was the store restored? run `llmgw store bump-epoch`",
            )

    async def _renew(self, lease: Lease, began: float) -> None:
        if await self._ask(lambda: self._lease_store.renew(lease)):
            self._stores.leadership.held(lease, since=began)
            return
        self._lease = None
        leader = await self._ask(self._lease_store.leader)
        self._stores.leadership.lost(leader)
        self._stores.wake.ring()
        log.warning("leadership lost", leader=leader)

    async def _ask(self, question: Callable[[], T]) -> T:
        """Return the lease store's answer.

        It may be a plugin's, and its mistake must not end the server: it costs the leadership.
        """
        try:
            return await self._call(question)
        except LlmgwError:
            raise
        except Exception as error:
            mistake = f"{type(error).__name__}: {error}"
            raise TransientError(f"lease store {self._lease_store.name}: {mistake}") from error

    def _note_failure(self, error: LlmgwError) -> None:
        if not self._failed:
            log.warning("leadership store does not answer", why=error)
        self._failed = True
        expired = self._stores.leadership.lease(self._clock.monotonic()) is None
        if self._lease is not None and expired:
            self._lease = None
            self._stores.leadership.lost(None)
            self._stores.wake.ring()
            log.warning("leadership ended, the lease could not be renewed")

    async def release(self) -> None:
        """Stop leading, and let another start at once."""
        lease, self._lease = self._lease, None
        self._stores.leadership.lost(None)
        if lease is not None:
            try:
                await self._ask(lambda: self._lease_store.release(lease))
            except LlmgwError as error:
                log.info("lease not given back, it runs out by itself", why=error)


class _OneThread:
    """Runs calls one at a time, off the loop."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(1)

    async def __call__(self, function: Callable[[], T], /) -> T:
        return await anyio.to_thread.run_sync(
            function, limiter=self._limiter, abandon_on_cancel=True
        )
