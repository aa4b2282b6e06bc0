"""Routers that keep limits together: what they may do in all, and how soon a share moves."""

from __future__ import annotations

import random

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.keys import ApiKey, KeyLimits
from llmgw.domain.shares import KeyWant, RouterShares, RouterWants
from llmgw.router.feed.desk import ShareDesk
from llmgw.router.keys import Charge, KeyGrant, KeyTable
from llmgw.testing.clock import FakeClock

SECRET_HASH = "0" * 64
IDLE = RouterWants()
E = EndpointId("e")


def key(**limits: int) -> ApiKey:
    return ApiKey(id="k", secret_hash=SECRET_HASH, limits=KeyLimits(**limits))


class Fleet:
    """A desk and routers that report to it once a second, each with a table of keys."""

    def __init__(self, *names: str, **limits: int) -> None:
        self.clock = FakeClock()
        self.desk = ShareDesk()
        self.desk.take_keys([key(**limits)])
        self.tables = {name: KeyTable(self.clock, is_open=False) for name in names}
        self.told: dict[str, RouterShares | None] = dict.fromkeys(names)
        for table in self.tables.values():
            table.replace([key(**limits)])

    def grant(self, name: str) -> KeyGrant:
        (grant,) = self.tables[name].grants()
        return grant

    def report(self, *names: str) -> None:
        for name in names or self.tables:
            wants = RouterWants(keys=self.tables[name].wants())
            shares = self.desk.share(name, wants, self.told[name], self.clock.monotonic())
            self.told[name] = shares
            self.tables[name].take_shares(shares)

    def ask(self, name: str, tokens: int = 1) -> Charge | None:
        got = self.grant(name).begin(tokens)
        return got if isinstance(got, Charge) else None

    async def second(self) -> None:
        await self.clock.advance(1)
        self.report()


def test_a_router_alone_has_all_and_so_has_one_that_nobody_has_told() -> None:
    fleet = Fleet("a", concurrent_requests=3)
    for _ in range(2):
        held = [fleet.ask("a") for _ in range(4)]
        assert [charge is not None for charge in held] == [True, True, True, False]
        for charge in held:
            if charge is not None:
                charge.end(0)
        fleet.report()


async def test_what_one_does_not_use_is_the_others_within_three_seconds() -> None:
    fleet = Fleet("a", "b", concurrent_requests=8)
    fleet.report()
    fleet.report()
    held = [charge for _ in range(8) if (charge := fleet.ask("a")) is not None]
    assert len(held) == 4
    for _ in range(3):
        await fleet.second()
        held += [charge for _ in range(8) if (charge := fleet.ask("a")) is not None]
    assert len(held) == 8 - 1, "the least that every router keeps is one"
    assert fleet.ask("b") is not None


async def test_what_has_moved_comes_back_to_who_needs_it() -> None:
    fleet = Fleet("a", "b", concurrent_requests=8)
    fleet.report()
    held: list[Charge] = []
    for _ in range(4):
        held += [charge for _ in range(8) if (charge := fleet.ask("a")) is not None]
        await fleet.second()
    for charge in held:
        charge.end(0)
    got: list[Charge] = []
    for _ in range(4):
        await fleet.second()
        got += [charge for _ in range(8) if (charge := fleet.ask("b")) is not None]
    assert len(got) >= 7


@pytest.mark.parametrize("seed", range(8))
async def test_requests_in_flight_never_exceed_the_limit_by_more_than_the_other_routers(
    seed: int,
) -> None:
    draw = random.Random(seed)
    fleet = Fleet("a", "b", "c", concurrent_requests=30)
    for _ in range(5):
        await fleet.second()
    held: list[Charge] = []
    for _ in range(400):
        busy = draw.choice("abc")
        asked = [fleet.ask(draw.choice((busy, busy, *"abc"))) for _ in range(draw.randrange(40))]
        held += [charge for charge in asked if charge is not None]
        draw.shuffle(held)
        for charge in held[: draw.randrange(len(held) + 1)]:
            charge.end(0)
            held.remove(charge)
        assert len(held) <= 30 + 2
        await fleet.clock.advance(0.3)
        fleet.report(draw.choice("abc"))


async def test_a_rate_holds_for_all_routers_whichever_is_asked() -> None:
    fleet = Fleet("a", "b", requests_per_minute=60)
    await fleet.second()
    await fleet.second()
    served = 0
    for second in range(300):
        busy = "a" if second // 20 % 2 else "b"
        served += sum(fleet.ask(busy) is not None for _ in range(5))
        await fleet.second()
    saved_up, least = 60, 1
    assert served <= saved_up + (60 + least) * 5
    assert served >= 60 * 5 * 0.75, "what wanders loses little"


def test_a_new_router_is_not_shut_and_a_silent_one_gives_its_share_back() -> None:
    desk = ShareDesk()
    desk.take_endpoints([Endpoint(id=E, url="http://e", models=(ModelName("m"),), max_inflight=8)])
    busy = RouterWants(endpoints={E: 8})
    first = desk.share("a", busy, None, 0.0)
    assert first.of_endpoint(E, 8) == 8
    assert desk.share("b", busy, None, 1.0).of_endpoint(E, 8) == 4
    assert desk.share("a", busy, first, 1.0).of_endpoint(E, 8) == 4
    assert desk.share("a", busy, None, 17.0).of_endpoint(E, 8) == 8


def test_a_desk_that_has_just_opened_believes_how_many_there_were() -> None:
    """After a change of the leader routers report one after the other."""
    desk = ShareDesk()
    desk.take_keys([key(concurrent_requests=9)])
    limits = KeyLimits(concurrent_requests=9)
    before = RouterShares(serial=7, routers=3)
    wants = RouterWants(keys={"k": KeyWant(concurrent_requests=9)})
    told = desk.share("a", wants, before, 0.0)
    assert told.of_key("k", limits).concurrent_requests == 3
    assert desk.share("a", wants, told, 4.0).of_key("k", limits).concurrent_requests == 9


def test_expected_workers_share_from_the_first_report_on() -> None:
    desk = ShareDesk()
    desk.expect(4)
    assert desk.share("w0", IDLE, None, 0.0).routers == 4
    assert desk.share("w0", IDLE, None, 5.0).routers == 1


def test_a_desk_hands_out_no_more_than_it_was_given_itself() -> None:
    desk = ShareDesk()
    desk.take_keys([key(tokens_per_minute=1000)])
    desk.bound = RouterShares(routers=2)
    limits = KeyLimits(tokens_per_minute=1000)
    wants = RouterWants(keys={"k": KeyWant(tokens_per_minute=2000)})
    for _ in range(3):
        told = {name: desk.share(name, wants, None, 0.0) for name in "ab"}
    of_desk = desk.bound.of_key("k", limits)
    parts = [shares.of_key("k", of_desk).tokens_per_minute for shares in told.values()]
    assert sum(part or 0 for part in parts) == 500


def test_what_all_could_use_is_summed_for_the_next_desk() -> None:
    desk = ShareDesk()
    for name in "ab":
        wants = RouterWants(keys={"k": KeyWant(requests_per_minute=3)}, endpoints={E: 2})
        desk.share(name, wants, None, 0.0)
    assert desk.wants(0.0) == RouterWants(
        keys={"k": KeyWant(requests_per_minute=6)}, endpoints={E: 4}
    )


async def test_an_idle_key_is_reported_no_more() -> None:
    fleet = Fleet("a", requests_per_minute=60)
    assert fleet.tables["a"].wants() == {}
    charge = fleet.ask("a")
    assert charge is not None
    charge.end(0)
    await fleet.clock.advance(1)
    assert "k" in fleet.tables["a"].wants()
    for _ in range(20):
        await fleet.clock.advance(1)
        wants = fleet.tables["a"].wants()
    assert wants == {}
