"""Ten thousand malformed requests, from a seed: nothing breaks, nothing slips through.

nox -s hostile -- --seed 7          another ten thousand
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from llmgw.testing.malformed import HIDDEN, Malformed, malformed
from llmgw.testing.strict_answers import Answer, UnsoundAnswer, read_answers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SHARES = {"api": 5_000, "router": 2_000, "tls": 1_000, "admin": 1_500, "router admin": 500}
AT_ONCE = 50
CLOSED_WITHIN_S = 12.0
"""The longest of our limits is the 1 s for a head, a body's pause or the next request, then 2 s
for the client to read; the rest is a busy machine."""

#: What these routers may answer with a 5xx, by code: never a crash, never a lost engine.
FIVE_HUNDREDS: frozenset[tuple[int, str]] = frozenset()


class Report:
    """What came back, counted."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.by_engine = 0
        self.faults: list[str] = []

    def take(self, sent: Malformed, data: bytes) -> None:
        try:
            answers = read_answers(data, is_head=sent.is_head)
        except (UnsoundAnswer, ValueError) as error:
            self.fault(sent, str(error))
            return
        for answer in answers:
            self.statuses[answer.status] += 1
            self.by_engine += answer.header(b"x-llmgw-endpoint") is not None
            if answer.status >= 500 and (answer.status, answer.code) not in FIVE_HUNDREDS:
                self.fault(sent, f"{answer.status}: {answer.body[:300]!r}")
        if "both_framings" in sent.changes and not (answers and _closes(answers)):
            self.fault(sent, "left open after both framings")

    def fault(self, sent: Malformed, what: str) -> None:
        self.faults.append(f"#{sent.number} {', '.join(sent.changes)}: {what}")


def _closes(answers: list[Answer]) -> bool:
    return len(answers) == 1 and answers[0].closes


async def send(listener: Any, sent: Malformed, report: Report) -> None:
    try:
        reader, writer = await listener.open()
    except (ConnectionError, OSError) as error:
        report.fault(sent, f"no connection: {error!r}")
        return
    data = bytearray()
    try:
        async with asyncio.timeout(CLOSED_WITHIN_S):
            reading = asyncio.ensure_future(_read_all(reader, data))
            await _write_all(writer, sent.pieces)
            await reading
        report.take(sent, bytes(data))
    except TimeoutError:
        report.fault(sent, f"still open after {CLOSED_WITHIN_S} s: {bytes(data[-300:])!r}")
    finally:
        writer.close()


async def _read_all(reader: asyncio.StreamReader, data: bytearray) -> None:
    try:
        while piece := await reader.read(2**16):
            data += piece
    except ConnectionError:
        return  # a reset after the answer: the rest of a refused body was still on its way


async def _write_all(writer: asyncio.StreamWriter, pieces: tuple[bytes, ...]) -> None:
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0.001)
    except ConnectionError:
        return  # refused and closed before all of it was sent


async def send_all(listener: Any, seed: int, numbers: range, key: str, report: Report) -> int:
    """Send them `AT_ONCE` at a time; return how many requests an engine may have seen of them."""
    waiting = (malformed(seed, number, key) for number in numbers)
    meant = 0

    async def worker() -> None:
        nonlocal meant
        for sent in waiting:
            meant += sent.meant
            await send(listener, sent, report)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(worker())
    return meant


@pytest.mark.parametrize("name", list(SHARES))
async def test_malformed_requests_break_nothing(
    target: Any, name: str, seed: int, figures: Any
) -> None:
    listener, count, engine = target.listeners[name], SHARES[name], target.engine
    report = Report()
    # Caches fill and arenas grow, OpenSSL's for thousands of connections: compared is what follows.
    warm = range(10**6, 10**6 + max(3_000, count // 2))
    meant = await send_all(listener, seed, warm, target.key, report)
    before = listener.memory_kib
    meant += await send_all(listener, seed, range(count), target.key, report)
    after = listener.memory_kib
    figures(
        listener=name,
        seed=seed,
        requests=count + len(warm),
        statuses=dict(sorted(report.statuses.items())),
        engine_saw=len(engine.requests),
        memory_kib=(before, after),
    )
    assert not report.faults, "\n".join([f"{len(report.faults)} faults", *report.faults[:20]])
    assert listener.running.process.poll() is None
    assert "Traceback" not in listener.running.text, listener.running.text[-3000:]
    check_engine(engine, report, meant)
    assert after <= before * 1.05, f"grew from {before} to {after} KiB"


def check_engine(engine: Any, report: Report, meant: int) -> None:
    """The engine saw what was meant for it, in one framing, and nothing that was hidden."""
    assert report.by_engine <= len(engine.requests) <= meant
    for request in engine.requests:
        names = Counter(name for name, _ in request.headers)
        assert names["content-length"] == 1
        assert not names["transfer-encoding"]
        assert names["authorization"] == names["cookie"] == 0
        assert "?" not in request.line
        assert not _user(request.body).startswith(HIDDEN), request.body[:300]


def _user(body: bytes) -> str:
    try:
        return str(json.loads(body).get("user"))
    except ValueError:
        return ""  # a form


async def test_what_is_no_tls_at_all_is_closed(target: Any, seed: int) -> None:
    listener = target.listeners["tls"]
    for number in range(200):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        for piece in malformed(seed, number, target.key).pieces:
            writer.write(piece)
        try:
            async with asyncio.timeout(CLOSED_WITHIN_S):
                while await reader.read(2**16):
                    pass
        except ConnectionError:
            pass
        writer.close()
    assert listener.running.process.poll() is None
    assert not target.engine.requests
