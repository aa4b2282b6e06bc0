"""Answers a server's request by a call of its own on the same channel."""

from __future__ import annotations

import asyncio
from collections import deque

import anyio
import grpc.aio

from llmgw.domain.replicas import Progress
from llmgw.errors import NotAvailable, PermanentError, TransientError
from llmgw_agent.node.host import Report
from llmgw_agent.node.link.abilities import Abilities
from llmgw_agent.wire.codec import encode_bulk
from llmgw_agent.wire.codec.scalars import raw
from llmgw_agent.wire.frames import (
    Ask,
    BulkDone,
    BulkFrame,
    BulkOpening,
    BulkProblem,
    BulkRequest,
    BulkWorking,
    InstallEngine,
    ListLogs,
    ListWeights,
    LogLines,
    LogSources,
    PullWeights,
    ReadLog,
    RemoveEngine,
    RemoveWeights,
    WeightsList,
)
from llmgw_agent.wire.service import Stub

_WORKING_EVERY_S = 1.0  # a tenth of what a server waits for a sign of life; progress goes with it
_BATCH_BYTES = 128 << 10
_LINE_BYTES = 64 << 10
_CUT = " […cut]".encode()
_WAITING_LINES = 20_000  # of a log whose reader is slow


async def answer(request: BulkRequest, stub: Stub, abilities: Abilities) -> None:
    """Answer until done, or until the server wants no more."""
    call = stub.bulk(None)
    try:
        await call.write(encode_bulk(BulkOpening(id=request.id)))
        outgoing = _Outgoing()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_produce, request.ask, abilities, outgoing)
            tasks.start_soon(_send_all, call, outgoing)
            await call.code()  # the server has everything, wants no more, or is gone
            tasks.cancel_scope.cancel()
    except grpc.aio.AioRpcError:
        pass  # the connection is gone, which the session reports
    finally:
        call.cancel()


class _Outgoing:
    """Frames of one answer; lines are gathered, and the oldest dropped if nobody reads them."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._frames: deque[BulkFrame] = deque()
        self._progress: Progress | None = None
        self._filled = anyio.Event()

    def put_line(self, line: str) -> None:
        data = raw(line)
        if len(data) > _LINE_BYTES:
            data = data[:_LINE_BYTES] + _CUT
        self._lines.append(data)
        if len(self._lines) > _WAITING_LINES:
            self._lines.popleft()
            self._dropped += 1
        self._filled.set()

    def put(self, frame: BulkFrame) -> None:
        self._frames.append(frame)
        self._filled.set()

    def reporter(self, what: str, unit: str) -> Report:
        """Return a report whose newest word goes with the next sign of life."""

        def report(done: float, total: float | None) -> None:
            self._progress = Progress(what=what, done=done, total=total, unit=unit)

        return report

    async def get(self, limit_s: float) -> BulkFrame:
        """Return the next frame; BulkWorking if there is none within the limit."""
        if not self._lines and not self._frames:
            self._filled = anyio.Event()
            with anyio.move_on_after(limit_s):
                await self._filled.wait()
        if self._lines:
            return LogLines(lines=self._batch())
        return self._frames.popleft() if self._frames else BulkWorking(progress=self._progress)

    def _batch(self) -> tuple[bytes, ...]:
        batch: list[bytes] = []
        if self._dropped:
            batch.append(
                f"[llmgw: {self._dropped} lines dropped: they were read too slowly]".encode()
            )
            self._dropped = 0
        size = 0
        while self._lines and size < _BATCH_BYTES:
            batch.append(self._lines.popleft())
            size += len(batch[-1])
        return tuple(batch)


async def _send_all(call: grpc.aio.StreamUnaryCall[bytes, bytes], outgoing: _Outgoing) -> None:
    """Write frames up to the last, or until the call is over."""
    try:
        while True:
            frame = await outgoing.get(_WORKING_EVERY_S)
            await call.write(encode_bulk(frame))
            if isinstance(frame, BulkDone | BulkProblem):
                await call.done_writing()
                return
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # over


async def _produce(ask: Ask, abilities: Abilities, outgoing: _Outgoing) -> None:
    try:
        await _do(ask, abilities, outgoing)
        outgoing.put(BulkDone())
    except TransientError as error:
        outgoing.put(BulkProblem(message=str(error), transient=True))
    except PermanentError as error:
        outgoing.put(BulkProblem(message=str(error), transient=False))


async def _do(ask: Ask, abilities: Abilities, outgoing: _Outgoing) -> None:
    logs, weights, engines = abilities.logs, abilities.weights, abilities.engines
    match ask:
        case ListLogs() if logs:
            outgoing.put(LogSources(sources=logs.sources()))
        case ReadLog(source=source, lines=lines, follow=follow) if logs:
            async for line in logs.read(source, lines=lines, follow=follow):
                outgoing.put_line(line)
        case ListWeights() if weights:
            outgoing.put(WeightsList(entries=await weights.entries()))
        case PullWeights(ref=ref) if weights:
            await weights.pull(ref, report=outgoing.reporter("fetching weights", "bytes"))
        case RemoveWeights(ref=ref) if weights:
            await weights.remove(ref)
        case InstallEngine(engine=engine, version=version) if engines:
            report = outgoing.reporter("installing", "packages")
            await engines.install(engine, version, report=report)
        case RemoveEngine(engine=engine, version=version) if engines:
            await engines.remove(engine, version)
        case _:
            raise NotAvailable(f"this agent cannot do that ({type(ask).__name__})")
