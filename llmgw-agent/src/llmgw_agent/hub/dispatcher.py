"""The dispatcher named `grpc`: serves agents, and reaches them for whoever asks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

import anyio
import anyio.to_thread
import grpc.aio
from anyio.abc import TaskStatus

from llmgw.contracts.dispatch import DispatcherContext, Heard, LogSource, WeightsEntry
from llmgw.contracts.sinks import ReportSink
from llmgw.domain.commands import Command
from llmgw.domain.ids import NodeId
from llmgw.errors import ConfigError, NodeUnreachable, PermanentError, Problem, TransientError
from llmgw.logs import get_logger
from llmgw_agent.hub.admissions import PeerAdmissions
from llmgw_agent.hub.authorities import AuthorityWatch
from llmgw_agent.hub.bulk import Answers
from llmgw_agent.hub.call import House
from llmgw_agent.hub.listener import credentials_of, listen, unlink_socket
from llmgw_agent.hub.service import NodeStreamService
from llmgw_agent.hub.sessions import Sessions
from llmgw_agent.wire.addresses import ServerAddress, TcpAddress, parse_address
from llmgw_agent.wire.frames import (
    Ask,
    BulkDone,
    BulkFrame,
    BulkProblem,
    BulkRequest,
    BulkWorking,
    Goodbye,
    GoodbyeCode,
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
from llmgw_agent.wire.options import SERVER_OPTIONS
from llmgw_agent.wire.service import handler
from llmgw_agent.wire.versions import own_version

log = get_logger(__name__)

F = TypeVar("F", LogSources, WeightsList)

_STOP_GRACE_S = 2.0


class HubDispatcher:
    """Implements Dispatcher, LogReader, WeightManager and EngineInstaller over agents' streams."""

    name = "grpc"

    def __init__(
        self,
        context: DispatcherContext,
        *,
        heartbeat_s: float = 5.0,
        answer_limit_s: float = 10.0,
        server_version: str | None = None,
    ) -> None:
        """heartbeat_s: shortest interval. answer_limit_s: to a bulk request's next sign of life.

        server_version: None for the installed one. Raises ConfigError if `agent_listen` is no
        address.
        """
        try:
            self._address = parse_address(context.agent_listen)
        except ValueError as error:
            raise ConfigError(
                "agent_listen", [Problem(path="agent_listen", message=str(error))]
            ) from None
        self._context = context
        self._heartbeat_s = heartbeat_s
        self._answer_limit_s = answer_limit_s
        self._version = server_version or own_version()
        self._sessions = Sessions()
        self._answers = Answers()

    async def run(self, reports: ReportSink, *, task_status: TaskStatus[str]) -> None:
        """Serve agents until cancelled (`Dispatcher.run`)."""
        watch = AuthorityWatch(self._context.trust, self._context.clock, every_s=self._heartbeat_s)
        admissions = PeerAdmissions(
            self._context.trust, self._sessions, self._context.clock, every_s=self._heartbeat_s
        )
        house = House(
            trust=self._context.trust,
            clock=self._context.clock,
            reports=reports,
            server_version=self._version,
            heartbeat_s=self._heartbeat_s,
            node_count_hint=self._context.node_count_hint,
            authorities=watch,
            admissions=admissions,
            sessions=self._sessions,
        )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        has_tls = isinstance(self._address, TcpAddress)
        server.add_generic_rpc_handlers(
            (handler(NodeStreamService(house, self._answers, has_tls=has_tls)),)
        )
        bound: ServerAddress | None = None
        try:
            bound = listen(server, self._address, await self._credentials() if has_tls else None)
            # Before agents come: the first welcome says which authorities are in force.
            async with anyio.create_task_group() as tasks:
                await tasks.start(watch.run)
                tasks.start_soon(admissions.run)
                await server.start()
                log.info("agents may connect", address=str(bound))
                task_status.started(str(bound))
        finally:
            with anyio.CancelScope(shield=True):
                self._sessions.end_all(
                    Goodbye(code=GoodbyeCode.STOPPING, message="the server stops")
                )
                await server.stop(_STOP_GRACE_S)
            if bound is not None:
                unlink_socket(bound)

    async def _credentials(self) -> grpc.ServerCredentials:
        trust = self._context.trust
        return credentials_of(trust, await anyio.to_thread.run_sync(trust.server_identity))

    async def dispatch(self, node: NodeId, commands: Sequence[Command]) -> None:
        """Queue commands on the node's session (`Dispatcher.dispatch`)."""
        session = self._sessions.reach(node)
        for command in commands:
            session.send(command)

    async def log_sources(self, node: NodeId) -> tuple[LogSource, ...]:
        """Return the logs that the node itself lists (`LogReader`)."""
        return (await self._one(node, ListLogs(), LogSources)).sources

    async def read_log(
        self, node: NodeId, *, source: str, lines: int, follow: bool
    ) -> AsyncGenerator[str, None]:
        """Yield lines, odd bytes shown as replacement characters (`LogReader`)."""
        ask = ReadLog(source=source, lines=lines, follow=follow)
        async with aclosing(self._ask(node, ask)) as frames:
            async for frame in frames:
                if isinstance(frame, LogLines):
                    for line in frame.lines:
                        yield line.decode("utf-8", "replace")

    async def list_weights(self, node: NodeId) -> tuple[WeightsEntry, ...]:
        return (await self._one(node, ListWeights(), WeightsList)).entries

    async def pull_weights(self, node: NodeId, ref: str, *, heard: Heard) -> None:
        """Return once they are on the node; the pull stops where it is if this is cancelled."""
        await self._until_done(node, PullWeights(ref=ref), heard)

    async def remove_weights(self, node: NodeId, ref: str) -> None:
        await self._until_done(node, RemoveWeights(ref=ref))

    async def install_engine(
        self, node: NodeId, engine: str, version: str, *, heard: Heard
    ) -> None:
        """Return once it is installed; the installation stops if this is cancelled."""
        await self._until_done(node, InstallEngine(engine=engine, version=version), heard)

    async def remove_engine(self, node: NodeId, engine: str, version: str) -> None:
        await self._until_done(node, RemoveEngine(engine=engine, version=version))

    async def _one(self, node: NodeId, ask: Ask, kind: type[F]) -> F:
        async with aclosing(self._ask(node, ask)) as frames:
            async for frame in frames:
                if isinstance(frame, kind):
                    return frame
        raise _unanswered(node)

    async def _until_done(self, node: NodeId, ask: Ask, heard: Heard | None = None) -> None:
        async with aclosing(self._ask(node, ask)) as frames:
            async for frame in frames:
                if heard is not None and isinstance(frame, BulkWorking) and frame.progress:
                    heard(frame.progress)

    async def _ask(self, node: NodeId, ask: Ask) -> AsyncGenerator[BulkFrame, None]:
        """Yield the frames of one answer until it is whole.

        The agent gives signs of life all the time, so that one limit serves for answers of a
        millisecond and of an hour. Raises NodeUnreachable, or the agent's own refusal.
        """
        session = self._sessions.reach(node)
        with self._answers.expect(node) as answer:
            session.send(BulkRequest(id=answer.id, ask=ask))
            while True:
                try:
                    with anyio.fail_after(self._answer_limit_s):
                        frame = await answer.frames.receive()
                except TimeoutError:
                    raise _unanswered(node) from None
                except anyio.EndOfStream:
                    raise NodeUnreachable(
                        f"node {node}: the connection ended before the answer did"
                    ) from None
                match frame:
                    case BulkDone():
                        return
                    case BulkProblem(message=message, transient=True):
                        raise TransientError(f"node {node}: {message}")
                    case BulkProblem(message=message):
                        raise PermanentError(f"node {node}: {message}")
                    case _:
                        yield frame


def _unanswered(node: NodeId) -> NodeUnreachable:
    return NodeUnreachable(f"node {node}: agent gone or too old to answer")
