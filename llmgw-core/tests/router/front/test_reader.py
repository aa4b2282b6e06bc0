"""What one read after the other makes of requests, without sockets."""

from __future__ import annotations

import pytest

from llmgw.errors import RequestError
from llmgw.router.front import Front, Limits
from llmgw.router.front.head import HEAD_LIMIT
from llmgw.router.front.reader import RequestReader
from llmgw.router.metrics import RouterMetrics
from llmgw.router.timers import TimerWheel
from llmgw.testing.clock import FakeClock
from llmgw.testing.raw_http import get, post

CHUNKED = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
OFFER = {"connection": "Upgrade", "upgrade": "h2c"}


@pytest.fixture
def reader() -> RequestReader:
    front = Front(limits=Limits(), wheel=TimerWheel(FakeClock()), metrics=RouterMetrics())
    return RequestReader(front, lambda: None)


def refusal_of(reader: RequestReader) -> RequestError:
    (refusal,) = reader.read
    assert isinstance(refusal, RequestError)
    return refusal


def paths_of(reader: RequestReader) -> list[bytes]:
    found: list[bytes] = []
    for item in reader.read:
        assert not isinstance(item, RequestError), item
        found.append(item[0].path)
    return found


@pytest.mark.parametrize(
    "begun",
    [b"GET / HTTP/1.1\r\nX-A: ", CHUNKED + b"1\r\na\r\n0\r\nX-A: ", CHUNKED + b"1\r\na\r\n1;x="],
    ids=["head", "trailer", "extension of a chunk"],
)
def test_what_has_no_end_is_refused_before_it_fills_the_memory(
    reader: RequestReader, begun: bytes
) -> None:
    reader.feed(begun)
    sent = 0
    while not reader.read:
        assert sent <= 2 * HEAD_LIMIT
        reader.feed(b"a" * 4096)
        sent += 4096
    assert refusal_of(reader).status == 431
    assert sent > HEAD_LIMIT


def test_sizes_that_come_apart_from_their_chunks_are_no_head(reader: RequestReader) -> None:
    reader.feed(CHUNKED)
    for _ in range(HEAD_LIMIT // 4):
        reader.feed(b"01\r\n")
        reader.feed(b"a\r\n")
    reader.feed(b"0\r\n\r\n")
    assert paths_of(reader) == [b"/"]


def test_a_head_behind_a_large_request_is_measured_by_itself(reader: RequestReader) -> None:
    following = get("/next")
    reader.feed(post("/large", b"a" * 2 * HEAD_LIMIT) + following[:10])
    for place in range(10, len(following)):
        reader.feed(following[place : place + 1])
    assert paths_of(reader) == [b"/large", b"/next"]


def test_two_thousand_offers_of_another_protocol_in_one_read_are_as_many_requests(
    reader: RequestReader,
) -> None:
    reader.feed(b"".join(get(f"/{number}", headers=OFFER) for number in range(2000)))
    assert paths_of(reader) == [b"/%d" % number for number in range(2000)]
