"""Two servers that both believe they lead: what protects the fleet when the lease does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from llmgw.testing.fleet import Fleet, ask
from llmgw.testing.site import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Figures = Callable[..., None]

#: A way to agree on one leader that agrees with everybody; each server has a term of its own.
BELIEVER = """
import os
from llmgw.contracts.leases import Lease
from llmgw.domain.ids import Epoch

class Believer:
    name = "believer"
    term = int(os.environ.get("CHAOS_TERM", "1"))

    def acquire(self, holder):
        return Lease(holder=holder, epoch=Epoch(1 << 32 | self.term), term=self.term, limit_s=1e9)

    def renew(self, lease):
        return True

    def release(self, lease):
        pass

    def leader(self):
        return "everybody"

@hookimpl
def llmgw_lease_stores(settings):
    return [Believer()]
"""


def test_of_two_leaders_agents_obey_the_newer_and_the_store_neither(
    database: str, make_fleet: Callable[..., Fleet], figures: Figures
) -> None:
    """F7: two processes forced to believe they lead."""
    fleet = make_fleet(store_url=database)
    plugin = fleet.home / "plugin" / "llmgw_fake.py"
    plugin.write_text(plugin.read_text() + BELIEVER)
    model = fleet.model("m", replicas=2)
    first = fleet.server([model])  # leads in truth, and brings the catalog to the store
    wait_for("the catalog is stored", lambda: first.get("/history")["changes"], 30)
    first.stop()
    fleet.servers.clear()
    for term in ("1", "2"):
        fleet.env["CHAOS_TERM"] = term
        fleet.server([model], control={"lease_store": "believer"})
    older, newer = fleet.servers
    agent = fleet.agent()
    wait_for("both believe", lambda: older.leads() and newer.leads(), 30)
    wait_for("the model runs", lambda: len(newer.ready()) >= 2, 90)
    before = len(older.get("/history")["changes"])
    refused = [
        item.send("PUT", "/catalog/m", {"model": {**model, "aliases": ["x"]}})
        for item in (older, newer)
    ]
    taken = agent.text.count("INFO shard assigned")
    time.sleep(15)
    stale = agent.text.count("code=stale_epoch")
    assert agent.text.count("INFO shard assigned") == taken
    assert len(newer.ready()) == len(agent.tree()) / 2  # a shim and an engine each
    assert ask(newer.target, "m").status_code == 200
    assert all(not reply.is_success for reply in refused), [reply.text for reply in refused]
    assert len(older.get("/history")["changes"]) == before
    assert agent.status()["epoch"] == 1 << 32 | 2
    figures(
        F7=f"both believe; writes of both refused ({[reply.status_code for reply in refused]}), "
        f"nothing added to the history; {len(newer.ready())} replicas for 2 wanted; "
        f"{stale} orders of the older epoch refused by the agent, none obeyed since the newer one"
    )
