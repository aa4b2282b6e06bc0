"""Whatever three servers do in whatever order, one leads at a time and one writes in each term.

`LLMGW_STEPS` sets how many steps are taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
import sqlalchemy as sa

from llmgw.contracts.leases import Lease
from llmgw.errors import NotLeader
from llmgw.store import Store

STEPS = int(os.environ.get("LLMGW_STEPS", "10000"))


@dataclass
class Row:
    """What the lease must say, by what has been done to it."""

    term: int
    holder: str | None = None
    has_run_out: bool = True

    def is_of(self, held: Lease) -> bool:
        return (self.holder, self.term) == (held.holder, held.term)


class Cluster:
    """Three servers on one database, whose clock is moved past the lease from time to time."""

    def __init__(self, stores: dict[str, Store], url: str) -> None:
        self.stores = stores
        self.admin = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with self.admin.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE acts (number serial, term int, name text)")
            (term,) = connection.exec_driver_sql("SELECT term FROM lease").one()
        self.row = Row(term)
        self.held: dict[str, Lease] = {}  #: what each server believes to hold
        self.epochs: list[int] = []

    def acquire(self, name: str) -> None:
        got = self.stores[name].leases.acquire(name)
        assert (got is not None) is self.row.has_run_out
        if got is not None:
            assert got.term == self.row.term + 1
            self.row = Row(got.term, name, has_run_out=False)
            self.held[name] = got
            self.epochs.append(got.epoch)

    def renew(self, name: str) -> None:
        if (held := self.held.get(name)) is not None:
            renewed = self.stores[name].leases.renew(held)
            assert renewed is (self.row.is_of(held) and not self.row.has_run_out)
            if not renewed:
                del self.held[name]

    def release(self, name: str) -> None:
        if (held := self.held.pop(name, None)) is not None:
            self.stores[name].leases.release(held)
            if self.row.is_of(held):
                self.row = Row(held.term)

    def write(self, name: str) -> None:
        held = self.held.get(name)
        may_write = held is not None and self.row.is_of(held)
        term = self.row.term if held is None else held.term
        insert = sa.text("INSERT INTO acts VALUES (DEFAULT, :term, :name)")
        values = {"term": term, "name": name}
        try:
            self.stores[name].catalog._database.write(
                lambda connection: connection.execute(insert, values), fenced=True
            )
        except NotLeader:
            has_written = False
            self.held.pop(name, None)
        else:
            has_written = True
        assert has_written is may_write

    def run_out(self, _name: str) -> None:
        with self.admin.begin() as connection:
            connection.exec_driver_sql("UPDATE lease SET expires = expires - 100")
        self.row.has_run_out = True

    def ask(self, name: str) -> None:
        leader = None if self.row.has_run_out else self.row.holder
        assert self.stores[name].leases.leader() == leader


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_one_leads_at_a_time_and_one_writes_in_each_term(
    open_: Callable[..., Store], store_url: str
) -> None:
    cluster = Cluster({name: open_() for name in ("ada", "bob", "cyd")}, store_url)
    acts = (cluster.acquire, cluster.renew, cluster.release, cluster.write, cluster.ask)
    drawn = Random(STEPS)
    for step in range(STEPS):
        act = drawn.choices((*acts, cluster.run_out), (4, 4, 1, 6, 1, 2))[0]
        try:
            act(drawn.choice(sorted(cluster.stores)))
        except AssertionError as error:
            error.add_note(f"step {step}: {act.__name__} with {cluster.row}")
            raise
    assert sorted(set(cluster.epochs)) == cluster.epochs, "epochs only rise, and none twice"
    with cluster.admin.connect() as connection:
        written = connection.exec_driver_sql("SELECT term, name FROM acts ORDER BY number").all()
    cluster.admin.dispose()
    terms = [term for term, _ in written]
    assert terms == sorted(terms)
    assert len({(term, name) for term, name in written}) == len(set(terms)) > STEPS // 50
