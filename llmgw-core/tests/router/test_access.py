"""What the access log says of a trace that a client began."""

from __future__ import annotations

import pytest

from llmgw.router.access import trace_id_of

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
