"""The file with which a router starts while no server answers."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from llmgw.adminapi.feed_messages import FeedSnapshot
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.secret import Secret
from llmgw.router.feed import LastTable

SNAPSHOT = FeedSnapshot(
    cluster="c",
    server="s",
    epoch=Epoch(4),
    leading=True,
    serial=1,
    endpoints=(
        Endpoint(
            id=EndpointId("e"),
            url="http://x",
            models=(ModelName("m"),),
            credential=Secret("k3y"),
        ),
    ),
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    table = LastTable(tmp_path / "below" / "table.json")
    assert table.load() is None
    table.save(SNAPSHOT)
    assert table.load() == SNAPSHOT
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["table.json"]


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    LastTable(path).save(SNAPSHOT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", [b"", b'{"type":"snap', b'{"type":"pulse"}\n', b"\x00" * 100])
def test_a_damaged_file_is_no_table_and_no_crash(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(text)
    assert LastTable(path).load() is None


def test_a_disk_that_refuses_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        LastTable(blocked / "table.json").save(SNAPSHOT)
    assert "table not saved" in caplog.text
    assert "k3y" not in caplog.text
