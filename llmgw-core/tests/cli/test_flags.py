"""Flags of `server` and `router`, and how their mistakes are told."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from llmgw.cli.main import run
from llmgw.cli.router import server_urls
from llmgw.config.endpoint_flag import parse_endpoint


def test_an_endpoint_is_given_in_one_word() -> None:
    assert parse_endpoint(" e1 = http://127.0.0.1:8000/ = llama3 , default ") == {
        "id": "e1",
        "url": "http://127.0.0.1:8000/",
        "models": ["llama3", "default"],
    }


@pytest.mark.parametrize(
    "text", ["", "e1", "e1=http://x", "=http://x=m", "e1==m", "e1=http://x=m,"]
)
def test_a_malformed_endpoint_shows_the_form(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server", "--endpoint", text]) == 2
    assert "id=URL=model[,model]" in capsys.readouterr().err


def test_an_endpoint_that_is_wrong_in_itself_names_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["server", "--state-dir", str(tmp_path), "--endpoint", "e1=ftp://x=m"]
    assert run(words) == 2
    assert "endpoints[0].url: must be an http or https URL" in capsys.readouterr().err
    assert "(from flag --endpoint)" in run_error(words, capsys)


def run_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    run(words)
    return capsys.readouterr().err


def test_a_server_with_nothing_to_do_names_both_ways_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["server", "--state-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "give a model a profile" in err
    assert "--endpoint id=URL=model" in err


def test_servers_of_a_router_are_urls_and_http_may_be_left_out() -> None:
    given = ["10.0.0.1:8081,https://b:1/", "unix:/run/feed"]
    assert server_urls(given) == ["http://10.0.0.1:8081", "https://b:1", "unix:/run/feed"]


@pytest.mark.parametrize("given", [[","], ["ftp://x"], ["http://"]])
def test_a_server_that_is_no_url_is_a_usage_error(given: list[str]) -> None:
    with pytest.raises(click.UsageError):
        server_urls(given)


@pytest.mark.parametrize("content", [None, ""])
def test_a_router_without_a_token_says_where_to_get_one(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    words = ["router", "--server", "http://x", "--token-file", str(file)]
    assert run(words) == 2
    assert "--token-file" in capsys.readouterr().err
