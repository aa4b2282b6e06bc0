"""What the access log says of a trace that a client began, and where it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.router.access import RotatingFile, trace_id_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (f"accept: */*\r\ntraceparent: 00-{TRACE}-{SPAN}-01\r\n", TRACE),
        (f"traceparent: 01-{TRACE}-{SPAN}-01-later\r\n", TRACE),
        (f"traceparent: 00-{'0' * 32}-{SPAN}-01\r\n", ""),
        (f"traceparent: 00-{TRACE.upper()}-{SPAN}-01\r\n", ""),
        (f"user-agent: traceparent: 00-{TRACE}-{SPAN}-01\r\n", ""),
        ("traceparent: x\r\n", ""),
        ("accept: */*\r\n", ""),
        ("", ""),
    ],
)
def test_a_trace_id_is_noted_where_a_valid_one_is_given(headers: str, found: str) -> None:
    assert trace_id_of(headers.encode()) == found


def write(file: RotatingFile, line: bytes) -> None:
    file.write(line)
    file.flush()


def test_a_full_file_becomes_the_older_part(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "access.jsonl", limit_bytes=10)
    for line in (b"one\n", b"two\n", b"three\n", b"four\n"):
        write(file, line)
    assert (tmp_path / "access.jsonl.1").read_bytes() == b"three\n"
    assert (tmp_path / "access.jsonl").read_bytes() == b"four\n"


def test_a_full_file_that_could_not_be_renamed_is_renamed_once_it_can(tmp_path: Path) -> None:
    older = tmp_path / "access.jsonl.1"
    (older / "in the way").mkdir(parents=True)
    file = RotatingFile(tmp_path / "access.jsonl", limit_bytes=5)
    write(file, b"one\n")
    with pytest.raises(IsADirectoryError):
        write(file, b"lost\n")
    (older / "in the way").rmdir()
    older.rmdir()
    write(file, b"two\n")
    assert older.read_bytes() == b"one\n"
    assert (tmp_path / "access.jsonl").read_bytes() == b"two\n"
