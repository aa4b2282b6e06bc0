"""Stores as released versions of llmgw wrote them: each is brought up to date and keeps all it said.

A release that changes the tables records the store of the version before it, never changes one.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.domain.ids import NodeId
from llmgw.domain.secret import Secret
from llmgw.store import open_store
from llmgw.store.schema import SCHEMA_VERSION
from llmgw.testing.clock import FakeClock

RECORDED = sorted((Path(__file__).parent / "recorded").glob("v*.sql"))


def test_every_version_but_a_newest_one_is_recorded() -> None:
    assert RECORDED[0].stem == "v0001"
    assert len(RECORDED) >= int(SCHEMA_VERSION) - 1


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_a_store_of_an_earlier_version_is_brought_up_to_date(
    recorded: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "llmgw.db")) as database:
        database.executescript(recorded.read_text())
    store = open_store(None, state_dir=tmp_path, clock=FakeClock(), cluster_secret=Secret("s" * 43))
    assert store.schema_version() == SCHEMA_VERSION
    assert store.check() == ()
    assert [entry.model.name for entry in store.catalog.entries()] == ["llama"]
    assert [change.who for change in store.catalog.history()] == ["anna"]
    assert {node.id: node.cordoned for node in store.nodes.list()} == {
        "gpu-01": "new fans",
        "gpu-02": None,
    }
    assert [record.key.name for record in store.keys.list()] == ["team"]
    assert [token.name for token in store.tokens.list()] == ["anna"]
    assert [token.created_by for token in store.trust.tokens()] == ["anna"]
    assert store.trust.revoked(NodeId("gpu-09")) == "stolen"
    assert store.trust.server_identity().client_roots, "its sealed authority opens"
    assert [event.kind for event in store.events.list()] == ["node_lost"]
    assert store.learned.all() == {"k": {"memory_mib": 12.0}}
    store.close()
