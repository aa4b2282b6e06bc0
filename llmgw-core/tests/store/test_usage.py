"""Usage is added once and summed exactly."""

from __future__ import annotations

import concurrent.futures
import time
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.usage import UsageBatch, UsageRecord
from llmgw.store import Store
from llmgw.store.database import connect, parse_url
from llmgw.store.schema import usage
from llmgw.store.usage import UsageGroup
from llmgw.testing.clock import FakeClock

DAY = 24


def record(
    hour: int, *, key: str = "k", model: str = "m", requests: int = 1, status: int = 200
) -> UsageRecord:
    return UsageRecord(
        at=hour * 3600.0 + 1,
        key=key,
        model=ModelName(model),
        endpoint=EndpointId("e"),
        status=status,
        requests=requests,
        prompt_tokens=10 * requests,
    )


def batch(ident: str, *records: UsageRecord) -> UsageBatch:
    return UsageBatch(id=ident, records=records)


def test_a_batch_that_is_sent_twice_counts_once(store: Store) -> None:
    """C070: after a lost reply the sender repeats itself."""
    assert store.usage.add(batch("boot/1", record(0)))
    assert not store.usage.add(batch("boot/1", record(0)))
    assert store.usage.add(batch("boot/2", record(0)))
    (total,) = store.usage.sums([], since=0)
    assert (total.requests, total.prompt_tokens) == (2, 20)


def test_sums_are_by_key_model_and_day(store: Store) -> None:
    store.usage.add(
        batch(
            "1",
            record(5 * DAY, requests=1),
            record(5 * DAY + 23, requests=2),
            record(6 * DAY, requests=4),
            record(5 * DAY, key="other", requests=8),
            record(5 * DAY, model="n", requests=16),
        )
    )
    by_day = store.usage.sums([UsageGroup.KEY, UsageGroup.MODEL, UsageGroup.DAY], since=0)
    assert {(item.key_id, item.model, item.start): item.requests for item in by_day} == {
        ("k", "m", 5 * 86400.0): 3,
        ("k", "m", 6 * 86400.0): 4,
        ("other", "m", 5 * 86400.0): 8,
        ("k", "n", 5 * 86400.0): 16,
    }
    by_hour = store.usage.sums([UsageGroup.HOUR], since=0, key_id="k", model="m")
    assert [(item.start, item.requests) for item in by_hour] == [
        (5 * 86400.0, 1),
        (5 * 86400.0 + 23 * 3600, 2),
        (6 * 86400.0, 4),
    ]


def test_a_range_has_its_start_and_not_its_end(store: Store) -> None:
    store.usage.add(batch("1", *(record(hour) for hour in range(10))))
    (total,) = store.usage.sums([], since=2 * 3600, until=5 * 3600)
    assert total.requests == 3


def test_nothing_used_is_zero_not_missing(store: Store) -> None:
    (total,) = store.usage.sums([], since=0)
    assert total.requests == 0
    assert store.usage.sums([UsageGroup.KEY], since=0) == ()


def test_failed_requests_are_counted_apart(store: Store) -> None:
    store.usage.add(
        batch("1", record(0), record(0, status=503), record(0, status=429), record(0, status=499))
    )
    (total,) = store.usage.sums([], since=0)
    assert (total.requests, total.failed) == (4, 2)


def test_a_keys_budget_counts_this_day_and_this_month(store: Store, clock: FakeClock) -> None:
    now = datetime(2027, 3, 15, 12, tzinfo=UTC)
    clock.jump_wall(now.timestamp() - clock.wall())
    hour = int(now.timestamp() // 3600)
    store.usage.add(
        batch(
            "1",
            record(hour, requests=1),
            record(hour - 12, requests=2),  # today's first hour
            record(hour - 13, requests=4),  # yesterday
            record(hour - 14 * DAY - 12, requests=8),  # the month's first hour
            record(hour - 14 * DAY - 13, requests=16),  # last month
            record(hour, key="", requests=32),  # nobody's
        )
    )
    (spent,) = store.usage.spend()
    assert (spent.key, spent.day_tokens, spent.month_tokens) == ("k", 30, 150)
    assert (spent.day, spent.month) == (hour // 24, 2027 * 12 + 2)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_two_servers_that_are_the_first_of_an_hour_at_once_are_both_counted(
    store: Store, store_url: str
) -> None:
    engine, another = connect(parse_url(store_url)), connect(parse_url(store_url))
    counts = {"requests": 1, "failed": 0, "prompt_tokens": 10}
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        with engine.connect() as connection, connection.begin():
            connection.execute(
                usage.insert().values(
                    hour=7,
                    key_id="k",
                    model="m",
                    cached_tokens=0,
                    completion_tokens=0,
                    **counts,
                )
            )
            added = other.submit(store.usage.add, batch("boot/2", record(7)))
            waits = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            with another.connect() as looking:
                while not looking.execute(waits).scalar_one():
                    time.sleep(0.01)
        assert added.result(10)
    engine.dispose()
    another.dispose()
    (total,) = store.usage.sums([], since=0)
    assert (total.requests, total.prompt_tokens) == (2, 20)
