"""Files that others watch."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.errors import TransientError
from llmgw.sinks.files import replace_file


def test_a_file_is_replaced_only_if_it_differs_and_is_its_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "targets.json"
    assert replace_file(path, "one")
    first = path.stat().st_ino
    assert not replace_file(path, "one")
    assert path.stat().st_ino == first
    assert replace_file(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["targets.json"]


def test_a_file_that_cannot_be_written_is_named_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(TransientError, match="taken"):
        replace_file(tmp_path / "taken" / "targets.json", "text")
