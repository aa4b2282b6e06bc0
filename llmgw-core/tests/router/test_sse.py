"""Looking at event streams without parsing them."""

from __future__ import annotations

import random

import pytest

from llmgw.router.sse import (
    EVENT_LIMIT,
    EventCutter,
    Usage,
    event_data,
    find_error,
    has_data,
    read_usage,
    split_events,
    without_usage_events,
)

STREAM = (
    b": hello\n\n"
    b'data: {"a": 1}\n\n'
    b"event: x\r\ndata: two\r\ndata: lines\r\n\r\n"
    b"data:none\r\r"
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("seed", range(20))
def test_events_come_out_whole_however_they_came_in(seed: int) -> None:
    draw = random.Random(seed)
    cutter = EventCutter()
    out: list[bytes] = []
    rest = STREAM
    while rest:
        size = draw.randint(1, 12)
        piece, rest = rest[:size], rest[size:]
        if whole := cutter.cut(piece):
            assert whole.endswith((b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\r"))
            out.append(whole)
    out.append(cutter.rest())
    assert b"".join(out) == STREAM


def test_a_whole_event_passes_as_the_same_object() -> None:
    data = b"data: x\n\n"
    assert EventCutter().cut(data) is data


def test_an_endless_event_is_refused() -> None:
    cutter = EventCutter()
    assert cutter.cut(b"x" * EVENT_LIMIT) == b""
    with pytest.raises(OverflowError):
        cutter.cut(b"x")


def test_data_of_several_lines_is_joined() -> None:
    assert event_data(b"event: x\r\ndata: two\r\ndata:lines\r\n\r\n") == b"two\nlines"
    assert [event_data(event) for event in split_events(STREAM)][1] == b'{"a": 1}'


@pytest.mark.parametrize(
    ("block", "expected"),
    [(b": ping\n\n", False), (b"data: x\n\n", True), (b"event: a\ndata: x\n\n", True)],
)
def test_a_comment_is_told_from_data(block: bytes, expected: bool) -> None:
    assert has_data(block) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}', Usage(1, 2)),
        (
            b'{"usage" : {"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":5}},"x":{}}',
            Usage(1, None, 5),
        ),
        (
            b'{"usage":{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":2}}',
            Usage(3, 4, 2),
        ),
        (b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":null}\n\n', Usage(1)),
        (b'{"usage":null}', None),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}', None),
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (b'{"usage":{"prompt_tokens":1', None),
    ],
)
def test_usage_is_read_where_it_is_structure(text: bytes, expected: Usage | None) -> None:
    assert read_usage(text) == expected


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b'data: {"error": {"message": "x"}}\n\n', True),
        (b'event: error\ndata: {"type":"error","error":{}}\n\n', True),
        (b'data: {"error": null, "id": 1}\n\n', False),
        (b'data: {"choices": [], "error": {"code": 1}}\n\n', False),
        (b'data: {"response": {"error": {}}}\n\n', False),
        (b'data: {"text": "{\\"error\\": 1}"}\n\n', False),
        (b'data: "error"\n\n', False),
    ],
)
def test_an_error_is_told_from_talk_about_errors(block: bytes, found: bool) -> None:
    assert (find_error(block) is not None) is found


def test_only_usage_events_without_choices_are_taken_out() -> None:
    usage = b'data: {"choices": [ ], "usage": {"prompt_tokens": 1}}\n\n'
    kept = b'data: {"choices": [{}], "usage": {"prompt_tokens": 1}}\n\n'
    assert without_usage_events(kept + usage + b"data: [DONE]\n\n") == kept + b"data: [DONE]\n\n"
