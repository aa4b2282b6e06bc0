"""Several servers over the same nodes: one acts, all publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.contracts.leases import Lease
from llmgw.control.loops.leadership import LeadershipLoop
from llmgw.domain.ids import Epoch
from llmgw.errors import StoreUnavailable
from llmgw.testing import values
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


class Row:
    """A lease row that several servers share, with a clock of its own."""

    name = "row"

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.term = 0
        self.holder: str | None = None
        self.expires = 0.0
        self.away = False

    def acquire(self, holder: str) -> Lease | None:
        self._answer()
        if self.holder is not None and self.expires > self._clock.monotonic():
            return None
        self.term += 1
        self.holder, self.expires = holder, self._clock.monotonic() + 15.0
        return Lease(holder=holder, epoch=Epoch(self.term), term=self.term, limit_s=10.0)

    def renew(self, lease: Lease) -> bool:
        self._answer()
        if lease.term != self.term or self.expires <= self._clock.monotonic():
            return False
        self.expires = self._clock.monotonic() + 15.0
        return True

    def release(self, lease: Lease) -> None:
        if lease.term == self.term:
            self.holder = None

    def leader(self) -> str | None:
        return self.holder

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailable("the store does not answer")


def join(site: Any, row: Row, name: str) -> LeadershipLoop:
    loop = LeadershipLoop(
        site.plane._stores, row, holder=name, clock=site.clock, jitter=lambda: 0.0
    )
    site.plane._leadership = loop
    return loop


async def test_only_the_leader_orders_and_a_follower_publishes_the_same(
    site: Any, make_site: Callable[..., Any], clock: FakeClock
) -> None:
    row = Row(clock)
    join(site, row, "one")
    follower = make_site(site.fleet)
    join(follower, row, "two")
    site.fleet.attach(Both(site.plane.reports, follower.plane.reports))
    models = [values.model("m")]
    follower.plane.set_catalog(models)
    await site.serve(models, values.inventory("n1"))
    await follower.turn(10)
    assert not follower.plane.view.standing().leading
    assert follower.plane.view.standing().leader == "one"
    assert follower.router.ids == site.router.ids
    assert len(site.fleet.sent) == 1


async def test_a_leader_that_cannot_renew_stops_before_another_may_begin(
    site: Any, make_site: Callable[..., Any], clock: FakeClock
) -> None:
    row = Row(clock)
    join(site, row, "one")
    await site.serve([values.model("m")], values.inventory("n1"))
    row.away = True
    site.plane.set_catalog([values.model("m"), values.model("n")])
    await clock.advance(10.5)
    before = len(site.fleet.sent)
    await site.turn(3)
    assert not site.plane.view.standing().leading
    assert len(site.fleet.sent) == before
    assert len(site.router.ids) == 1  # serving goes on
    row.away = False
    await clock.advance(6.0)
    other = make_site(site.fleet)
    join(other, row, "two")
    other.plane.set_catalog([values.model("m"), values.model("n")])
    site.fleet.reconnect(next(iter(site.fleet.nodes)))
    await other.turn(8)
    await other.settle()
    assert other.plane.view.standing().epoch > 1
    assert len(other.router.ids) == 2
    assert sum(len(node.starts) for node in site.fleet.nodes.values()) == 2


class Both:
    """Nodes hold a session to every server."""

    def __init__(self, *sinks: Any) -> None:
        self._sinks = sinks

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell(*arguments: Any) -> None:
            for sink in self._sinks:
                getattr(sink, name)(*arguments)

        return tell
