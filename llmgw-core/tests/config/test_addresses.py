"""Listening addresses, and where state is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.config.addresses import Address
from llmgw.config.places import default_state_dir


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:8080", "localhost:0", "[fe80::1%eth0]:1"])
def test_an_address_is_printed_as_it_is_read(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", True),
        ("localhost:80", "127.0.0.1:80", True),
        ("0.0.0.0:80", "127.0.0.1:80", True),
        ("127.0.0.1:80", "[::]:80", True),
        ("127.0.0.1:80", "127.0.0.2:80", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:80", "127.0.0.1:81", False),
    ],
)
def test_two_listeners_clash_where_the_system_would_refuse_the_second(
    one: str, other: str, clash: bool
) -> None:
    assert Address.parse(one).overlaps(Address.parse(other)) is clash


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/h"}, "/state/llmgw"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/llmgw"),
        ({"HOME": "/h"}, "/h/.local/state/llmgw"),
    ],
)
def test_state_lies_in_the_platforms_folder(env: dict[str, str], folder: str) -> None:
    assert default_state_dir(env) == Path(folder)
