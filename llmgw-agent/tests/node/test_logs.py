"""Lines out of whatever engines print."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from llmgw.clock import SystemClock
from llmgw.domain.ids import ShardId
from llmgw.errors import PermanentError
from llmgw.testing.clock import FakeClock
from llmgw_agent.node.logs import (
    HEAD_LINES,
    KEPT_LINES,
    LINE_LIMIT,
    AgentLog,
    EngineLog,
    LineAssembler,
    LogBook,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("pieces", "lines", "unfinished"),
    [
        ([b"one\ntwo\n"], ["one", "two"], ""),
        ([b"on", b"e\nt", b"wo"], ["one"], "two"),
        ([b"crlf\r\n", b"split\r", b"\n"], ["crlf", "split"], ""),
        ([b"\xff\xfe ok \xc3\n"], ["\ufffd\ufffd ok \ufffd"], ""),
        ([b"caf\xc3", b"\xa9\n"], ["café"], ""),
        ([b" 10%\r 20%\r 30%"], [], " 30%"),
        ([b" 10%\r", b" 20%\r"], [], " 20%"),
        ([b" 10%\r 20%\r 30%\rdone\n"], ["done"], ""),
        ([b"\n\n"], ["", ""], ""),
    ],
)
def test_lines_are_what_a_terminal_would_show(
    pieces: list[bytes], lines: list[str], unfinished: str
) -> None:
    assembler = LineAssembler()
    assert [line for piece in pieces for line in assembler.feed(piece)] == lines
    assert assembler.unfinished == unfinished


def test_an_endless_line_is_cut_with_a_mark_and_what_follows_is_in_order() -> None:
    assembler = LineAssembler()
    for _ in range(100):
        assert assembler.feed(b"x" * 100_000) == []
    long, after = assembler.feed(b"end\nnext\n")
    assert long == "x" * LINE_LIMIT + " […cut]"
    assert after == "next"


def engine_log(folder: Path) -> EngineLog:
    log = EngineLog(folder)
    log.begin(1)
    return log


def append(folder: Path, number: int, data: bytes) -> None:
    with (folder / f"{number:08d}.log").open("ab") as file:
        file.write(data)


def test_reading_goes_on_over_rotated_files(tmp_path: Path) -> None:
    log = engine_log(tmp_path)
    append(tmp_path, 1, b"a\nb")
    log.pull()
    append(tmp_path, 1, b"c\n")
    append(tmp_path, 2, b"d\n")
    log.pull()
    assert list(log.lines) == ["a", "bc", "d"]
    (tmp_path / "00000001.log").unlink()
    append(tmp_path, 3, b"e\n")
    (tmp_path / "00000002.log").unlink()
    log.pull()
    assert log.lines[-1] == "e"


def test_the_first_lines_are_kept_beside_the_last_ones(tmp_path: Path) -> None:
    append(tmp_path, 1, b"".join(b"line %d\n" % number for number in range(2000)))
    log = engine_log(tmp_path)
    log.pull()
    assert log.head == tuple(f"line {number}" for number in range(HEAD_LINES))
    assert len(log.lines) == KEPT_LINES
    assert log.tail[-1] == "line 1999"


def test_an_adopted_engines_long_log_is_read_at_its_start_and_its_end_only(tmp_path: Path) -> None:
    append(tmp_path, 1, b"the start\n" + b"x" * 79 + b"\n" * 1)
    append(tmp_path, 1, (b"y" * 79 + b"\n") * 40_000)
    append(tmp_path, 1, b"the end")
    log = engine_log(tmp_path)
    log.pull()
    assert log.head[0] == "the start"
    assert log.tail[-1] == "the end"
    assert log.read_bytes < 1 << 19


def test_another_incarnation_begins_with_its_own_lines(tmp_path: Path) -> None:
    append(tmp_path, 1, b"old\n")
    append(tmp_path, 2, b"new\n")
    log = EngineLog(tmp_path)
    log.begin(2)
    log.pull()
    assert (log.head, log.tail) == (("new",), ("new",))


def test_a_log_that_was_removed_by_hand_is_no_error(tmp_path: Path) -> None:
    log = engine_log(tmp_path / "gone")
    log.pull()
    assert log.tail == ()


async def take(lines: AsyncIterator[str], count: int) -> list[str]:
    taken: list[str] = []
    with anyio.fail_after(5):
        async for line in lines:
            taken.append(line)
            if len(taken) == count:
                break
    return taken


async def test_following_shows_progress_as_it_comes(tmp_path: Path) -> None:
    book = LogBook(agent=AgentLog(), clock=SystemClock())
    log = engine_log(tmp_path)
    book.add(ShardId("r1.0"), "fake serving m", log)
    append(tmp_path, 1, b"a\nb\n 10%\r")
    reading = book.read("r1.0", lines=2, follow=True)
    assert await take(reading, 2) == ["b", " 10%"]
    append(tmp_path, 1, b" 20%\r")
    reading = book.read("r1.0", lines=0, follow=True)
    async with anyio.create_task_group() as group:
        group.start_soon(_later, tmp_path)
        assert await take(reading, 2) == ["done", "more"]


async def _later(folder: Path) -> None:
    await anyio.sleep(0.05)
    append(folder, 1, b" 30%\rdone\n")
    append(folder, 2, b"more\n")


async def test_repeated_lines_are_followed_one_by_one() -> None:
    own, clock = AgentLog(), FakeClock()
    book = LogBook(agent=own, clock=clock)
    logger = logging.Logger("test")
    logger.addHandler(own)
    logger.info("same")
    seen: list[str] = []

    async def follow() -> None:
        seen.extend([line async for line in book.read("agent", lines=5, follow=False)])
        async for line in book.read("agent", lines=0, follow=True):
            seen.append(line)  # noqa: PERF401 -- it never ends

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await clock.advance(1)
        logger.info("same")
        logger.info("same")
        await clock.advance(1)
        group.cancel_scope.cancel()
    assert len(seen) == 3


async def test_an_unknown_source_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    book = LogBook(agent=AgentLog(), clock=FakeClock())
    book.add(ShardId("r1.0"), "fake serving m", engine_log(tmp_path))
    assert [item.name for item in book.sources()] == ["agent", "r1.0"]
    with pytest.raises(PermanentError, match=r"'\.\./x'.*agent, r1\.0"):
        await take(book.read("../x", lines=1, follow=False), 1)
