"""Which server, which token: and never this machine's token to another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.ctl.target import Wishes, contexts_file, find_target, write_contexts
from llmgw.errors import ConfigError


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    state = tmp_path / "state" / "llmgw"
    state.mkdir(parents=True)
    (state / "admin.token").write_text("local\n")
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def token_of(wishes: Wishes, env: dict[str, str]) -> str | None:
    token = find_target(wishes, env).token
    return None if token is None else token.reveal()


def test_on_the_servers_machine_nothing_need_be_said(env: dict[str, str]) -> None:
    target = find_target(Wishes(), env)
    assert target.server == "http://127.0.0.1:8081"
    assert token_of(Wishes(), env) == "local"
    assert token_of(Wishes(server="localhost:9"), env) == "local"


def test_another_machine_does_not_get_this_machines_token(env: dict[str, str]) -> None:
    assert token_of(Wishes(server="https://gw.example:8081"), env) is None


def test_flags_beat_contexts_beat_this_machine(env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "prod.token"
    file.write_text("prod")
    contexts = {"prod": {"server": "https://gw:8081/", "token_file": str(file)}}
    write_contexts(contexts_file(env), contexts, "prod")
    assert find_target(Wishes(), env).server == "https://gw:8081"
    assert token_of(Wishes(), env) == "prod"
    assert token_of(Wishes(token="mine"), env) == "mine"
    by_hand = Wishes(server="http://127.0.0.1:1")
    assert token_of(by_hand, env) == "local", "the context's token belongs to its own server"


def test_a_context_knows_who_vouches_for_its_server(env: dict[str, str], tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.crt", tmp_path / "theirs.crt"
    contexts = {"prod": {"server": "https://gw:8081", "server_ca": str(theirs)}}
    write_contexts(contexts_file(env), contexts, "prod")
    assert find_target(Wishes(), env).server_ca == theirs
    assert find_target(Wishes(server_ca=ours), env).server_ca == ours
    assert find_target(Wishes(server="https://other:8081"), env).server_ca is None


def test_a_context_or_file_that_is_not_there_is_named(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no context 'ghost'; known: none"):
        find_target(Wishes(context="ghost"), env)
    with pytest.raises(ConfigError, match=r"missing\.token cannot be read"):
        find_target(Wishes(token_file=tmp_path / "missing.token"), env)


def test_a_token_never_shows(env: dict[str, str]) -> None:
    assert "local" not in repr(find_target(Wishes(), env))
