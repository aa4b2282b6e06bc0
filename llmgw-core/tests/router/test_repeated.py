"""Heads that come again, told from those that only look so."""

from __future__ import annotations

import pytest

from llmgw.router.repeated import RepeatedHead

HEAD = b"HTTP/1.1 200 OK\r\nServer: e\r\nContent-Length: %d\r\nX-Last: 1\r\n\r\n%b"


def known() -> RepeatedHead:
    parts = RepeatedHead.parts(HEAD % (5, b"first"), 5)
    assert parts is not None
    return RepeatedHead(*parts)


def test_the_length_and_the_body_may_be_others() -> None:
    assert known().body(HEAD % (12, b"another body")) == b"another body"
    assert known().body(HEAD % (0, b"")) == b""


@pytest.mark.parametrize(
    "data",
    [
        HEAD % (5, b"four"),
        HEAD % (4, b"more than four"),
        HEAD.replace(b"X-Last: 1", b"X-Last: 2") % (4, b"body"),
        HEAD.replace(b"200", b"201") % (4, b"body"),
        HEAD.replace(b"%d", b"+%d") % (4, b"body"),
        HEAD.replace(b"%d", b"%d, 4") % (4, b"body"),
        HEAD.replace(b"%d", b"0x%d") % (4, b"body"),
        HEAD.replace(b"%d", b"") % b"",
        (HEAD % (4, b"body"))[:-20],
        b"",
    ],
)
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    assert known().body(data) is None


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (HEAD % (5, b"firs"), 5),
        (HEAD % (5, b"first and more"), 5),
        (HEAD.replace(b"Server: e", b"Content-Length: 5") % (5, b"first"), 5),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD % (5, b"first"), 5),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 0),
    ],
)
def test_only_a_message_that_came_whole_and_alone_is_remembered(data: bytes, length: int) -> None:
    assert RepeatedHead.parts(data, length) is None
