"""Answers of an engine whose heads come again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.router.outbox import Outbox
from llmgw.router.pool import AnswerHead, EngineConnection, EngineExchange, EngineFailure

ENDPOINT = Endpoint(id=EndpointId("e"), url="http://e", models=(ModelName("demo"),))
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
DATED = ANSWER.replace(b"content-type", b"date: %d\r\ncontent-type")


class Wire:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.is_closed = False

    def get_extra_info(self, name: str) -> None:
        return None

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Nowhere(Outbox):
    """Sends nothing, and needs no loop."""

    def write(self, transport: asyncio.Transport, data: bytes) -> None: ...


class Told(EngineExchange):
    """An exchange that notes what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_over = False
        self.failure: EngineFailure | None = None

    def answer_head(self, head: AnswerHead) -> None:
        self.status = head.status

    def answer_data(self, data: bytes) -> None:
        self.body += data

    def answer_end(self) -> None:
        self.is_over = True

    def answer_lost(self, failure: EngineFailure, *, stale: bool) -> None:
        self.failure = failure


class Engine:
    """One connection, and how often it was given back for reuse."""

    def __init__(self) -> None:
        self.reusable: list[bool] = []
        self.wire = Wire()
        self.connection = EngineConnection(
            ENDPOINT, lambda _, reusable: self.reusable.append(reusable), Nowhere()
        )
        self.connection.connection_made(cast(Any, self.wire))

    def answers(self, *reads: bytes) -> Told:
        told = Told()
        self.connection.send(told, b"", b"")
        for read in reads:
            self.connection.data_received(read)
        return told


def test_each_answer_is_the_one_that_came() -> None:
    engine = Engine()
    for body in (b"one", b"another", b"", b"one"):
        told = engine.answers(ANSWER % (len(body), body))
        assert (told.status, told.body, told.is_over) == (200, body, True)
    assert engine.reusable == [True] * 4


def test_the_parser_takes_over_wherever_something_differs_and_back() -> None:
    engine = Engine()
    engine.answers(ANSWER % (3, b"one"))
    whole = ANSWER % (6, b"halves")
    for reads in (
        (whole[:-3], whole[-3:]),
        (whole[:20], whole[20:]),
        (b"HTTP/1.1 100 Continue\r\n\r\n", whole),
        (whole,),
        (whole.replace(b"200 OK", b"429 Too Many Requests"),),
        (whole,),
    ):
        told = engine.answers(*reads)
        assert (told.body, told.is_over) == (b"halves", True)
    assert engine.reusable == [True] * 7


def test_a_status_is_never_taken_from_an_earlier_answer() -> None:
    engine = Engine()
    lines = (b"200 OK", b"200 OK", b"503 No", b"503 No", b"200 OK")
    answers = [(ANSWER % (1, b"x")).replace(b"200 OK", line) for line in lines]
    assert [engine.answers(answer).status for answer in answers] == [200, 200, 503, 503, 200]


def test_bytes_behind_an_answer_end_the_connection() -> None:
    engine = Engine()
    engine.answers(ANSWER % (3, b"one"))
    told = engine.answers(ANSWER % (3, b"two") + b"HTTP/1.1 200 OK\r\n")
    assert (told.body, told.is_over) == (b"two", True)
    assert engine.reusable == [True, False]
    assert engine.wire.is_closed


def test_an_engine_that_closes_after_an_answer_is_not_asked_again_over_it() -> None:
    last = (ANSWER % (1, b"x")).replace(b"content-type", b"connection: close\r\ncontent-type")
    for _ in range(2):
        engine = Engine()
        engine.answers(last)
        assert engine.reusable == [False]


@pytest.mark.parametrize("times", [100])
def test_heads_that_always_differ_are_read_by_the_parser(times: int) -> None:
    engine = Engine()
    for number in range(times):
        assert engine.answers(DATED % (number, 1, b"x")).body == b"x"
    assert engine.reusable == [True] * times
