"""The state folder and the operator's token."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llmgw.errors import ConfigError
from llmgw.server.statedir import admin_token, prepare


def test_the_folder_is_made_for_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "llmgw"
    prepare(folder)
    prepare(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--state-dir"):
        prepare(tmp_path / "file" / "llmgw")


def test_the_token_is_made_once_and_readable_by_this_user_only(tmp_path: Path) -> None:
    token = admin_token(tmp_path, None)
    file = tmp_path / "admin.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == token.reveal()
    assert len(token.reveal()) > 40
    assert admin_token(tmp_path, None) == token
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (b"\xff\xfe", "cannot be read")])
def test_a_token_file_without_a_token_never_means_that_none_is_needed(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "admin.token").write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        admin_token(tmp_path, None)


def test_a_token_file_that_was_named_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        admin_token(tmp_path, tmp_path / "absent")
