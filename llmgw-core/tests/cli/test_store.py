"""`llmgw store`: the operator's hands on a stopped server's database."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.cli.main import run


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
