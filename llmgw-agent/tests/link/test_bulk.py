"""Logs, weights and installs by calls of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from llmgw.contracts.dispatch import (
    EngineInstaller,
    LogReader,
    LogSource,
    WeightManager,
    WeightsEntry,
)
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Progress
from llmgw.errors import NodeUnreachable, PermanentError, TransientError
from llmgw_agent.node.host import Report
from llmgw_agent.node.link import Abilities

NODE = NodeId("gpu-01")
ENTRY = WeightsEntry(ref="path:/m.gguf", size_bytes=7, state="ready", used_by=("m-1-1.0",))


def ignore(progress: Progress) -> None:
    pass


class Logs:
    """Lines that are there, and lines that come."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.coming = anyio.Event()
        self.readers = 0

    def sources(self) -> tuple[LogSource, ...]:
        return (LogSource(name="agent", description="the agent itself", lines=len(self.lines)),)

    async def read(self, source: str, *, lines: int, follow: bool) -> AsyncIterator[str]:
        if source != "agent":
            raise PermanentError(f"no log {source!r} on this node; it has: agent")
        self.readers += 1
        try:
            for line in self.lines[-lines:]:
                yield line
            if follow:
                await self.coming.wait()
                yield "it came"
                await anyio.sleep_forever()
        finally:
            self.readers -= 1


class Weights:
    def __init__(self) -> None:
        self.pulled: list[str] = []
        self.release = anyio.Event()

    async def entries(self) -> tuple[WeightsEntry, ...]:
        return (ENTRY,)

    async def pull(self, ref: str, *, report: Report) -> None:
        report(3.0, 7.0)
        await self.release.wait()
        self.pulled.append(ref)

    async def remove(self, ref: str) -> None:
        raise PermanentError(f"{ref} is used by m-1-1.0")


class Engines:
    async def install(self, engine: str, version: str, *, report: Report) -> None:
        raise TransientError(f"{engine} {version}: the index did not answer")

    async def remove(self, engine: str, version: str) -> None:
        del engine, version


async def test_the_dispatcher_has_all_three_abilities(workshop: Any) -> None:
    dispatcher = workshop.server().dispatcher
    assert isinstance(dispatcher, LogReader)
    assert isinstance(dispatcher, WeightManager)
    assert isinstance(dispatcher, EngineInstaller)


async def test_a_node_lists_its_own_logs_and_gives_their_last_lines(workshop: Any) -> None:
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=Logs("one", "two", "three")))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            sources = await server.dispatcher.log_sources(NODE)
            assert [item.name for item in sources] == ["agent"]
            read = server.dispatcher.read_log(NODE, source="agent", lines=2, follow=False)
            assert [line async for line in read] == ["two", "three"]


async def test_odd_bytes_in_a_line_are_shown_as_replacements(workshop: Any) -> None:
    odd = b"load \xff ed".decode("utf-8", "surrogateescape")
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=Logs(odd)))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            read = server.dispatcher.read_log(NODE, source="agent", lines=9, follow=False)
            assert [line async for line in read] == ["load � ed"]


async def test_a_long_line_and_many_lines_pass_in_order(workshop: Any) -> None:
    lines = [f"line {number} " + "x" * 500 for number in range(10_000)]
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=Logs(*lines, "y" * (5 << 20))))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            read = server.dispatcher.read_log(NODE, source="agent", lines=20_000, follow=False)
            received = [line async for line in read]
    assert received[:-1] == lines
    assert received[-1].endswith("y […cut]")
    assert len(received[-1]) < 1 << 17


async def test_a_followed_log_ends_on_the_node_when_its_reader_leaves(workshop: Any) -> None:
    logs = Logs("one")
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=logs))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            follow = server.dispatcher.read_log(NODE, source="agent", lines=9, follow=True)
            async with aclosing(follow):
                assert await anext(follow) == "one"
                logs.coming.set()
                assert await anext(follow) == "it came"
                assert logs.readers == 1
            with anyio.fail_after(5):
                while logs.readers:  # noqa: ASYNC110 # a generator tells nobody that it ended
                    await anyio.sleep(0.02)


async def test_a_reader_that_does_not_read_delays_no_heartbeat(workshop: Any) -> None:
    lines = ["x" * 2000] * 19_000  # 38 MB, ten times what gRPC buffers
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=Logs(*lines)))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            read = server.dispatcher.read_log(NODE, source="agent", lines=19_000, follow=True)
            async with aclosing(read):
                await anext(read)
                seen = len(server.reports.beats)
                await server.reports.until(lambda: len(server.reports.beats) >= seen + 5)
            assert server.reports.gone == []


async def test_an_unknown_log_is_refused_in_the_nodes_words(workshop: Any) -> None:
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=Logs()))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            with pytest.raises(PermanentError, match=r"node gpu-01: no log 'x'.*it has: agent"):
                await anext(server.dispatcher.read_log(NODE, source="x", lines=1, follow=False))


async def test_weights_are_listed_pulled_and_refused(workshop: Any) -> None:
    weights = Weights()
    async with workshop.server(answer_limit_s=1).running() as server:
        agent = workshop.agent(server, abilities=Abilities(weights=weights))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            assert await server.dispatcher.list_weights(NODE) == (ENTRY,)
            weights.release.set()
            await server.dispatcher.pull_weights(NODE, ENTRY.ref, heard=ignore)
            assert weights.pulled == [ENTRY.ref]
            with pytest.raises(PermanentError, match=r"path:/m\.gguf is used by m-1-1\.0"):
                await server.dispatcher.remove_weights(NODE, ENTRY.ref)


async def test_how_far_a_pull_is_comes_with_its_signs_of_life(workshop: Any) -> None:
    weights = Weights()
    heard: list[Progress] = []

    def hear(progress: Progress) -> None:
        heard.append(progress)
        weights.release.set()

    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(weights=weights))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            with anyio.fail_after(5):
                await server.dispatcher.pull_weights(NODE, ENTRY.ref, heard=hear)
    assert heard[0] == Progress(what="fetching weights", done=3.0, total=7.0, unit="bytes")


async def test_engines_are_installed_and_removed(workshop: Any) -> None:
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(engines=Engines()))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            await server.dispatcher.remove_engine(NODE, "vllm", "0.33.0")
            with pytest.raises(TransientError, match=r"vllm 0\.33\.0: the index did not answer"):
                await server.dispatcher.install_engine(NODE, "vllm", "0.33.0", heard=ignore)


async def test_what_an_agent_cannot_do_is_said_at_once(workshop: Any) -> None:
    async with workshop.server().running() as server, workshop.agent(server).running():
        await server.reports.until(lambda: server.reports.registrations)
        with pytest.raises(PermanentError, match="this agent cannot do that"):
            await server.dispatcher.log_sources(NODE)


async def test_no_answer_within_the_limit_is_said_to_be_a_gone_or_old_agent(
    workshop: Any,
) -> None:
    async with workshop.server(answer_limit_s=0.2).running() as server:
        agent = workshop.agent(server, abilities=Abilities(weights=Weights()))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            with pytest.raises(NodeUnreachable, match="agent gone or too old to answer"):
                await server.dispatcher.pull_weights(NODE, "path:/never", heard=ignore)


async def test_an_agent_that_leaves_in_mid_answer_is_noticed(workshop: Any) -> None:
    logs = Logs("one")
    async with workshop.server().running() as server:
        agent = workshop.agent(server, abilities=Abilities(logs=logs))
        async with agent.running():
            await server.reports.until(lambda: server.reports.registrations)
            follow = server.dispatcher.read_log(NODE, source="agent", lines=9, follow=True)
            assert await anext(follow) == "one"
        with pytest.raises(NodeUnreachable, match="the connection ended"):
            await anext(follow)
