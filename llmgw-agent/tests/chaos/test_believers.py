"""Two servers that both believe they lead: what protects the fleet when the lease does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from llmgw.testing.fleet import Agent, Fleet, Server, ask
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
    postgres_url: str, make_fleet: Callable[..., Fleet], figures: Figures
) -> None:
    """F7: two processes forced to believe they lead."""
    fleet = make_fleet(store_url=postgres_url)
    plugin = fleet.home / "plugin" / "llmgw_fake.py"
    plugin.write_text(plugin.read_text() + BELIEVER)
    honest = fleet.server([fleet.model("m", replicas=2)])
    wait_for("the catalog is stored", lambda: honest.get("/history")["changes"], 30)
    for term in ("11", "12"):
        fleet.env["CHAOS_TERM"] = term
        fleet.server([], control={"lease_store": "believer"})
    _, older, newer = fleet.servers
    agent = fleet.agent()
    wait_for("all three believe", lambda: all(item.leads() for item in fleet.servers), 30)
    wait_for("the model runs", lambda: len(newer.ready()) == 2, 90)

    model = fleet.model("m", replicas=3)
    refused = [item.send("PUT", "/catalog/m", {"model": model}) for item in (older, newer)]
    before = len(honest.get("/history")["changes"])
    honest.serve_models([model])
    wait_for("orders of old terms are refused", lambda: "code=stale_epoch" in agent.text, 60)
    wait_for("three run, each once", lambda: is_settled(newer, agent, 3), 90)
    time.sleep(10)
    assert is_settled(newer, agent, 3)
    assert ask(newer.target, "m").status_code == 200
    assert all(not reply.is_success for reply in refused), [reply.text for reply in refused]
    assert len(honest.get("/history")["changes"]) == before + 1
    assert agent.status()["epoch"] == 1 << 32 | 12
    stale = agent.text.count("code=stale_epoch")
    figures(
        F7=f"three act as leaders; changes by the two without the lease refused "
        f"({[reply.status_code for reply in refused]}), one writer in the history; {stale} orders "
        "of older epochs refused by the agent; 3 replicas of 3 wanted, each once"
    )


def is_settled(server: Server, agent: Agent, count: int) -> bool:
    """Whether so many engines are ready, and no other runs."""
    ready = server.ready()
    return len(ready) == count and sorted(ready.values()) == sorted(agent.tree())
