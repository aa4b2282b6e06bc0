"""Whatever a file holds, reading it ends in data or in one error that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.documents import path_text, read_document
from llmgw.config.loading import load_server
from llmgw.errors import ConfigError

_SIGNS = st.sampled_from("{}[]<>|#?%@&*!'\"\n\t :-")
_PARTS = ("models", "name", "listen", "no", "08", "${A}", "1e999", "null", "---", "&a", "*a", "<<")
_WORDS = _SIGNS | st.sampled_from((*_PARTS, "- ", ": ", "\n  "))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents") / "llmgw.yaml"


@given(st.lists(_WORDS, max_size=40).map("".join).map(str.encode) | st.binary(max_size=200))
def test_no_text_does_anything_but_load_or_be_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    error = refusal(lambda: load_server(file, {"HOME": "/h"}, {}, needs_work=False))
    if error is not None:
        assert error.source == str(file)
        assert error.problems
        assert all(problem.message for problem in error.problems)


@given(st.lists(_WORDS, max_size=30).map("".join))
def test_the_same_holds_for_toml(file: Path, content: str) -> None:
    path = file.with_suffix(".toml")
    path.write_text(content)
    error = refusal(lambda: read_document(path))
    assert error is None or error.source == str(path)


def refusal(read: Callable[[], object]) -> ConfigError | None:
    try:
        read()
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("12e3", 12000.0),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("'no'", "no"),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("1_000", "1_000"),
        (".", "."),
    ],
)
def test_a_plain_word_is_what_it_looks_like(file: Path, text: str, value: object) -> None:
    file.write_text(f"key: {text}\n")
    document = read_document(file)
    assert document.data["key"] == value
    assert type(document.data["key"]) is type(value)
    assert document.problems == ()


def test_every_value_knows_its_line(file: Path) -> None:
    file.write_text("a:\n  b:\n    - x\n    - {c: 1}\n")
    document = read_document(file)
    assert document.line(("a", "b", 1, "c")) == 4
    assert document.line(("a", "b", 7)) == 2, "what is not there stands where it should"
    assert document.line(("z",)) is None


def test_a_path_reads_as_people_write_it() -> None:
    assert path_text(("models", 1, "profiles", 0, "engine")) == "models[1].profiles[0].engine"
    assert path_text(()) == ""
