"""Who is let in, and with which words the others are turned away."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.domain.endpoints import ModelState, ModelStatus
from llmgw.domain.ids import Epoch, ModelName
from llmgw.domain.keys import ApiKey, KeyLimits, KeySpend, Scope
from llmgw.errors import RequestError
from llmgw.router.keys import Charge, KeyGrant, KeyTable
from llmgw.router.keys.budget import day_of, month_of
from llmgw.router.table import ModelRoute, Table
from llmgw.testing.clock import FakeClock

SECRET = "s3cret_with_underscores-and-dashes"  # base64url has both


def key(id_: str = "k1", secret: str = SECRET, **given: Any) -> ApiKey:
    limits = KeyLimits(**given.pop("limits", {}))
    return ApiKey(
        id=id_, secret_hash=hashlib.sha256(secret.encode()).hexdigest(), limits=limits, **given
    )


def table(*keys: ApiKey, clock: FakeClock | None = None) -> KeyTable:
    made = KeyTable(clock or FakeClock(), is_open=False)
    made.replace(keys)
    return made


def shown(id_: str = "k1", secret: str = SECRET) -> bytes:
    return f"llmgw_{id_}_{secret}".encode()


def grant(made: KeyTable, **given: Any) -> KeyGrant:
    got = made.authorise([shown()], **given)
    assert isinstance(got, KeyGrant), got
    return got


def begin(of: KeyGrant, tokens: int = 1) -> Charge:
    charge = of.begin(tokens)
    assert isinstance(charge, Charge), charge
    return charge


def refusal(got: object) -> RequestError:
    assert isinstance(got, RequestError), got
    return got


@pytest.mark.parametrize(
    "value",
    [
        shown(),
        b"Bearer " + shown(),
        b"bearer " + shown(),
        b"BEARER   " + shown() + b"  ",
    ],
)
def test_a_right_key_is_accepted_in_each_legal_form(value: bytes) -> None:
    got = table(key()).authorise([value])
    assert isinstance(got, KeyGrant)
    assert got.key_id == "k1"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"bearer x"],
        [b"llmgw"],
        [b"llmgw_k1"],
        [b"llmgw_k1_"],
        [b"llmgw__" + SECRET.encode()],
        [b"LLMGW_k1_" + SECRET.encode()],
        [b"sk_k1_" + SECRET.encode()],
        [b"Basic " + shown()],
        [b"Bearer llmgw_k1_wrong"],
        [b"Bearer llmgw_k2_" + SECRET.encode()],
        ["Bearer llmgw_k1_clé".encode()],
        ["Bearer llmgw_ké1_x".encode("latin-1")],
        [b"\xef\xbb\xbfBearer " + shown()],
        ["Bearer “".encode() + shown() + "”".encode()],
        [b'Bearer "' + shown() + b'"'],
        [b"Bearer " + b"x" * 100_000],
        [b"\xff\xfe\x00"],
        [shown(), b"Bearer llmgw_k1_other"],
    ],
)
def test_anything_else_is_401_and_never_an_exception(values: list[bytes]) -> None:
    error = refusal(table(key()).authorise(values))
    assert (error.status, error.code) == (401, "invalid_api_key")
    assert SECRET not in error.message


def test_the_same_key_in_two_headers_is_one_key() -> None:
    assert isinstance(table(key()).authorise([b"Bearer " + shown(), shown()]), KeyGrant)


def test_no_grant_is_made_from_the_placeholder_for_unknown_ids() -> None:
    made = table(key())
    assert refusal(made.authorise([b"llmgw__"])).status == 401


async def test_a_key_ends_with_its_time_by_the_wall_clock() -> None:
    clock = FakeClock()
    made = table(key(expires_at=clock.wall() + 60), clock=clock)
    grant(made)
    await clock.advance(60)
    assert refusal(made.authorise([shown()])).status == 401


def test_a_key_that_is_missing_from_the_next_list_is_revoked() -> None:
    made = table(key())
    grant(made)
    made.replace([key("other")])
    assert refusal(made.authorise([shown()])).status == 401


def test_scopes_are_told_apart() -> None:
    made = table(key(scopes=(Scope.MODELS,)))
    grant(made, scope=Scope.MODELS)
    error = refusal(made.authorise([shown()]))
    assert (error.status, error.code) == (403, "missing_scope")


def test_without_keys_everybody_is_one_and_the_same() -> None:
    made = KeyTable(FakeClock(), is_open=True)
    for values in ([], [b"Bearer whatever"], [b"\xff"]):
        got = made.authorise(values)
        assert isinstance(got, KeyGrant)
        assert (got.key_id, got.rate_headers()) == ("", ())


def route(*names: str) -> ModelRoute:
    made = Table.build(
        [], [ModelStatus(names=tuple(map(ModelName, names)), state=ModelState.SERVING)], Epoch(0)
    ).find(names[0])
    assert made is not None
    return made


def test_a_key_opens_the_models_it_lists_by_any_of_their_names() -> None:
    some = grant(table(key(models=(ModelName("allowed"), ModelName("nick")))))
    assert some.allows(route("allowed", "other-alias"))
    assert some.allows(route("canonical", "nick"))
    assert not some.allows(route("denied"))
    assert not some.allows(route("allowed/../denied"))
    assert not grant(table(key(models=()))).allows(route("any"))
    assert grant(table(key())).allows(route("any"))


async def test_an_address_that_guesses_is_told_to_wait() -> None:
    clock = FakeClock()
    made = table(key(), clock=clock)
    for _ in range(60):
        assert refusal(made.authorise([b"llmgw_k1_x"], address="203.0.113.7")).status == 401
    error = refusal(made.authorise([b"llmgw_k1_x"], address="203.0.113.7"))
    assert (error.status, error.code) == (429, "too_many_failures")
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 1
    assert refusal(made.authorise([b"llmgw_k1_x"], address="203.0.113.8")).status == 401
    await clock.advance(61)
    assert refusal(made.authorise([b"llmgw_k1_x"], address="203.0.113.7")).status == 401


def test_a_right_key_is_not_locked_out_by_others_behind_the_same_proxy() -> None:
    made = table(key())
    for _ in range(100):
        made.authorise([b"llmgw_k1_x"], address="203.0.113.7")
    assert isinstance(made.authorise([shown()], address="203.0.113.7"), KeyGrant)


@given(st.lists(st.binary(max_size=80), max_size=3))
def test_no_bytes_whatever_raise(values: list[bytes]) -> None:
    for prefix in (b"", b"Bearer ", b"llmgw_", b"Bearer llmgw_k1_"):
        got = table(key()).authorise([prefix + value for value in values])
        assert refusal(got).status == 401


def test_guesses_from_ever_new_addresses_take_no_memory() -> None:
    made = table(key())
    for number in range(20_000):
        made.authorise([b"llmgw_k1_x"], address=str(number))
    assert len(made._attempts._failures) <= 8192


async def test_requests_per_minute_come_back_evenly() -> None:
    clock = FakeClock()
    some = grant(table(key(limits={"requests_per_minute": 60}), clock=clock))
    for _ in range(60):
        begin(some).end(1)
    error = refusal(some.begin(1))
    assert (error.status, error.code) == (429, "requests_per_minute_exceeded")
    assert error.retry_after_s == 1
    await clock.advance(1)
    begin(some)
    refusal(some.begin(1))


async def test_tokens_per_minute_are_settled_with_what_was_really_used() -> None:
    clock = FakeClock()
    some = grant(table(key(limits={"tokens_per_minute": 600}), clock=clock))
    begin(some, 100).end(550)
    error = refusal(some.begin(100))
    assert error.code == "tokens_per_minute_exceeded"
    assert error.retry_after_s == 5
    await clock.advance(5)
    begin(some, 100).end(0)
    begin(some, 100)


def test_a_request_larger_than_a_minutes_tokens_goes_when_nothing_else_has() -> None:
    some = grant(table(key(limits={"tokens_per_minute": 100})))
    begin(some, 5000)
    refusal(some.begin(1))


@pytest.mark.parametrize("used", [None, 0, 500])
def test_concurrent_requests_come_back_however_they_end(used: int | None) -> None:
    some = grant(table(key(limits={"concurrent_requests": 2})))
    for _ in range(20):
        held = [begin(some), begin(some)]
        assert refusal(some.begin(1)).code == "concurrent_requests_exceeded"
        for charge in held:
            charge.end(used)
            charge.end(used)
        assert some.in_flight == 0


def test_a_refused_request_uses_up_nothing() -> None:
    some = grant(table(key(limits={"requests_per_minute": 10, "tokens_per_minute": 10})))
    begin(some, 10)
    for _ in range(50):
        refusal(some.begin(10))
    headers = dict(some.rate_headers())
    assert headers[b"x-ratelimit-remaining-requests"] == b"9"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"0"
    assert headers[b"x-ratelimit-limit-requests"] == b"10"
    assert headers[b"x-ratelimit-reset-requests"] == b"6.000s"


async def test_a_day_budget_ends_with_the_day_of_utc() -> None:
    clock = FakeClock(wall=1_800_057_600.0 - 3600)  # an hour before midnight
    some = grant(table(key(limits={"tokens_per_day": 1000}), clock=clock))
    begin(some, 10).end(1000)
    error = refusal(some.begin(10))
    assert (error.status, error.code, error.kind) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert error.retry_after_s == pytest.approx(3600)
    await clock.advance(3600)
    begin(some, 10)


async def test_a_month_budget_outlives_the_day() -> None:
    clock = FakeClock()
    some = grant(table(key(limits={"tokens_per_month": 1000}), clock=clock))
    begin(some, 10).end(1000)
    await clock.advance(86400)
    assert refusal(some.begin(10)).code == "insufficient_quota"
    await clock.advance(31 * 86400)
    begin(some, 10)


def test_what_other_routers_used_counts_and_own_use_is_never_forgotten() -> None:
    clock = FakeClock()
    limited = key(limits={"tokens_per_day": 1000})
    made = table(limited, clock=clock)
    some = grant(made)
    day, month = day_of(clock.wall()), month_of(clock.wall())

    def learn(tokens: int) -> None:
        made.replace(
            [limited],
            [KeySpend(key="k1", day=day, day_tokens=tokens, month=month, month_tokens=tokens)],
        )

    begin(some, 10).end(400)
    learn(0)  # the store has not seen them yet
    learn(400)
    begin(some, 10).end(300)
    learn(700)
    learn(700)
    begin(some, 10).end(0)
    learn(1000)
    assert refusal(some.begin(10)).code == "insufficient_quota"


def test_a_changed_limit_holds_at_once_and_keeps_what_was_used() -> None:
    made = table(key(limits={"requests_per_minute": 100}))
    some = grant(made)
    for _ in range(40):
        begin(some).end(1)
    made.replace([key(limits={"requests_per_minute": 50, "concurrent_requests": 1})])
    assert grant(made) is some
    assert dict(some.rate_headers())[b"x-ratelimit-remaining-requests"] == b"10"
    begin(some)
    refusal(some.begin(1))


def test_a_wall_clock_that_jumps_moves_no_rate() -> None:
    clock = FakeClock()
    some = grant(table(key(limits={"requests_per_minute": 1}), clock=clock))
    begin(some)
    clock.jump_wall(3600)
    refusal(some.begin(1))
    clock.jump_wall(-7200)
    assert refusal(some.begin(1)).retry_after_s == 60


@pytest.mark.parametrize(
    ("wall", "day", "month"),
    [
        (0.0, 0, 1970 * 12),
        (1_798_761_599.0, 20818, 2026 * 12 + 11),
        (1_798_761_600.0, 20819, 2027 * 12),
    ],
)
def test_days_and_months_are_those_of_utc(wall: float, day: int, month: int) -> None:
    assert (day_of(wall), month_of(wall)) == (day, month)


async def test_a_grant_knows_that_its_key_was_revoked_or_has_expired_since() -> None:
    clock = FakeClock()
    made = table(key(expires_at=clock.wall() + 60), clock=clock)
    told: list[bool] = []
    held = grant(made)
    made.on_change = lambda: told.append(held.is_valid)
    assert held.is_valid
    await clock.advance(60)
    assert not held.is_valid
    made.replace([key(expires_at=clock.wall() + 60)])
    made.replace([])
    made.replace([key()])
    assert told == [True, False, False], "a revoked grant stays so; a new one is given"
    assert grant(made) is not held
