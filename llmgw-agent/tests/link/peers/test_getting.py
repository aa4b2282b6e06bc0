"""A node has weights from another one, and believes what it can check."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest

from llmgw.domain.ids import NodeId


async def test_a_node_has_weights_from_another_one_and_gives_them_on(fleet: Any) -> None:
    async with fleet.running("a", "b", "c") as (a, b, c):
        digest = await a.have()
        await fleet.registered(a)
        told: list[tuple[float, float | None]] = []
        path = await b.get(lambda *said: told.append(said))
        assert path == b.home / "data" / "files"
        assert b.content() == fleet.files
        assert told[-1] == (fleet.size, fleet.size)
        # Whoever has them by another node needs not find out what they are.
        assert b.cache.cached()[0].manifest == digest
        b.tell()
        await fleet.registered(b)
        await c.get()
        assert c.content() == fleet.files
        assert a.asked
        assert b.asked
        assert fleet.origin.fetches == 1


async def test_the_agent_finds_out_by_itself_what_it_can_give(fleet: Any) -> None:
    async with fleet.running("a", "b") as (a, b), anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: a.cache.run(task_status=task_status))
        await a.get()
        with anyio.fail_after(5):
            while not a.cache.cached()[0].manifest:  # noqa: ASYNC110 # nobody is told
                await anyio.sleep(0.01)
        a.tell()
        await fleet.registered(a)
        await b.get()
        assert b.content() == fleet.files
        assert fleet.origin.fetches == 1
        tasks.cancel_scope.cancel()


async def test_corrupt_bytes_are_noticed_and_had_from_the_origin(fleet: Any) -> None:
    async with fleet.running("a", "b") as (a, b):
        await a.have()
        await fleet.registered(a)
        with a.model.open("r+b") as file:
            file.seek(5 * fleet.piece + 7)
            file.write(b"\xff\xfe")
        await b.get()
        assert b.content() == fleet.files
        assert fleet.origin.fetches == 2


async def test_corrupt_bytes_of_one_node_are_had_from_another(fleet: Any) -> None:
    async with fleet.running("a", "b", "c") as (a, b, c):
        await a.have()
        await b.have()
        await fleet.registered(a)
        await fleet.registered(b)
        before = fleet.origin.fetches
        with a.model.open("r+b") as file:
            file.write(b"\xff\xfe")
        await c.get()
        assert c.content() == fleet.files
        assert fleet.origin.fetches == before


async def test_a_node_that_dies_on_the_way_is_replaced_by_another(fleet: Any) -> None:
    async with fleet.running("a", "b", "c") as (a, b, c):
        for node in (a, b):
            await node.have()
            await fleet.registered(node)
        before = fleet.origin.fetches
        a.sharing._pace._rate = 2 * fleet.piece  # slow enough to be caught at it
        fleet.origin.is_away = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(c.get)
            with anyio.fail_after(5):
                while not a.asked:  # noqa: ASYNC110 # a thread's list
                    await anyio.sleep(0.01)
            a.scope.cancel()
        assert c.content() == fleet.files
        assert fleet.origin.fetches == before


async def test_what_came_before_all_nodes_left_is_not_fetched_again(fleet: Any) -> None:
    async with fleet.running("b") as (b,), fleet.node("a").running() as a:
        await fleet.registered(a, weights=0)
        await a.have()
        a.sharing._pace._rate = 8 * fleet.piece  # slow enough to be caught at it
        await fleet.registered(a)
        with anyio.move_on_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(b.get)
                while len(a.asked) < 8:  # noqa: ASYNC110 # a thread's list
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
        first = set(a.asked)
        a.asked.clear()
        a.sharing._pace._rate = 1e9
        await b.get()
        assert b.content() == fleet.files
        assert len(a.asked) < len(fleet.files["files/model.safetensors"]) // fleet.piece
        assert first - set(a.asked)


async def test_a_node_that_gives_to_as_many_as_it_may_is_left_alone(fleet: Any) -> None:
    async with fleet.running("b") as (b,):
        node = fleet.node("a")
        node.door(connections=1)
        async with node.running():
            await fleet.registered(node, weights=0)
            digest = await node.have()
            await fleet.registered(node)
            node.admit(NodeId("b"), digest, for_s=60)
            with await anyio.to_thread.run_sync(b.dial, node.peer):
                await b.get()
        assert b.content() == fleet.files
        assert fleet.origin.fetches == 2


# --- whom a node believes --------------------------------------------------------------------


async def test_what_the_source_says_is_what_counts(fleet: Any) -> None:
    """Node a has something else under the ref, and says so honestly: its hashes are right."""
    other = {**fleet.files, "files/model.safetensors": b"\x01" * fleet.size}
    async with fleet.running("a", "b", b=fleet.source(proves=True, files=other)) as (a, b):
        await a.have()
        await fleet.registered(a)
        await b.get()
        assert b.origin.fetches == 1
        assert a.asked == []


async def test_a_small_file_that_is_another_one_is_noticed_at_the_end(fleet: Any) -> None:
    other = {**fleet.files, "files/config.json": b"[]"}
    async with fleet.running("a", "b", b=fleet.source(proves=True, files=other)) as (a, b):
        await a.have()
        await fleet.registered(a)
        await b.get()
        assert a.asked
        assert b.origin.fetches == 1


@pytest.mark.parametrize(("proves", "fetches"), [(False, 1), (True, 0)])
async def test_a_node_that_believes_proofs_alone_asks_the_origin_for_the_rest(
    fleet: Any, proves: bool, fetches: int
) -> None:
    source = fleet.source(proves=proves)
    async with fleet.running("a", "b", b=source) as (a, b):
        await a.have()
        await fleet.registered(a)
        b.cache = b.make_cache(trusts_fleet=False)
        await b.get()
        assert b.content() == fleet.files
        assert source.fetches == fetches
