"""`llmgw store`: the operator's hands on a server's database."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmgw.cli.main import run
from llmgw.store import open_store
from llmgw.testing.clock import FakeClock


def test_a_store_is_made_checked_copied_and_moved_past_old_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["store", "--state-dir", str(tmp_path / "state")]
    assert run([*store, "migrate"]) == 0
    assert run([*store, "check"]) == 0
    assert run([*store, "backup", str(tmp_path / "copy.db")]) == 0
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0
    assert run([*store, "bump-epoch"]) == 0
    first = capsys.readouterr().out
    assert "schema version" in first
    assert "\nok\n" in first
    assert run([*store, "backup", str(tmp_path / "copy.db")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_store_that_is_no_url_is_a_settings_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", "--state-dir", str(tmp_path), "--store-url", "nonsense", "check"]) == 2
    assert "llmgw: " in capsys.readouterr().err


def test_a_store_is_copied_while_its_server_writes(tmp_path: Path) -> None:
    running = open_store(None, state_dir=tmp_path / "state", clock=FakeClock())
    running.keys.create("before", who="anna")
    arguments = ["store", "--state-dir", str(tmp_path / "state"), "backup"]
    assert run([*arguments, str(tmp_path / "copy.db")]) == 0
    running.keys.create("after", who="anna")
    running.close()

    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(tmp_path / "copy.db", restored / "llmgw.db")
    shutil.copy(tmp_path / "state" / "cluster.secret", restored)
    opened = open_store(None, state_dir=restored, clock=FakeClock())
    assert [record.key.name for record in opened.keys.list()] == ["before"]
    assert opened.check() == ()
    opened.close()


def test_a_copy_of_nothing_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["store", "--state-dir", str(tmp_path), "backup"]
    assert run([*arguments, str(tmp_path / "copy.db")]) == 2
    assert "is no store" in capsys.readouterr().err
    assert not (tmp_path / "copy.db").exists()
