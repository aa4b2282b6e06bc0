"""The malformed requests are many, the same for one seed; the reader of answers is strict."""

from __future__ import annotations

import pytest

from llmgw.testing.malformed import HIDDEN, malformed
from llmgw.testing.malformed.bodies import BODIES
from llmgw.testing.malformed.heads import HEADS
from llmgw.testing.malformed.smuggling import SMUGGLING
from llmgw.testing.strict_answers import UnsoundAnswer, read_answers


def test_one_seed_gives_the_same_requests_and_another_gives_others() -> None:
    first, again, other = (
        [malformed(seed, number, "key").pieces for number in range(200)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_few_thousand_hold_every_change() -> None:
    done = {name for number in range(3_000) for name in malformed(1, number, "key").changes}
    assert done == {change.__name__ for change in (*SMUGGLING, *HEADS, *BODIES)}


def test_a_hidden_request_is_there_to_be_found() -> None:
    names = {change.__name__ for change in SMUGGLING}
    hiding = [
        request
        for number in range(1_000)
        if names & set((request := malformed(1, number, "key")).changes)
    ]
    assert len(hiding) > 200
    assert all(HIDDEN.encode() in b"".join(request.pieces) for request in hiding)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REFUSED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b'content-length: 29\r\n\r\n{"error":{"code":"bad_thing"}}'
).replace(b"29", b"30")


def test_sound_answers_are_read_whole() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    answers = read_answers(b"HTTP/1.1 100 Continue\r\n\r\n" + OK + chunked + REFUSED)
    assert [(answer.status, answer.body) for answer in answers[:2]] == [(200, b"ok"), (200, b"ab")]
    assert answers[2].code == "bad_thing"
    assert answers[2].closes
    assert read_answers(OK[:-2], is_head=True)[0].body == b""


@pytest.mark.parametrize(
    "data",
    [
        REFUSED + OK,
        OK[:-1],
        OK.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"),
        OK.replace(b"200", b"500"),
        REFUSED.replace(b"bad_thing", b"").replace(b"30", b"21"),
        REFUSED.replace(b"application/json", b"text/plain"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: 1\r\n\r\n",
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
def test_unsound_answers_are_named(data: bytes) -> None:
    with pytest.raises(UnsoundAnswer):
        read_answers(data)
