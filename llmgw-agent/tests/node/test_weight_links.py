"""Links in the cache of weights: what lies elsewhere is never touched, and never taken for whole (C054).

Nothing is shared between two refs, so that removing one cannot take anything from the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.contracts.weights import FetchContext
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.room import Room

pytestmark = pytest.mark.anyio

CONTENT = b"GGUF" + b"\x03" * 1000


class Same:
    """The same file for every ref."""

    scheme = "same"

    def __init__(self) -> None:
        self.fetches = 0

    def problem(self, ref: str) -> str | None:
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        self.fetches += 1
        part = context.folder / "model.part"
        part.write_bytes(CONTENT)
        return part.replace(context.folder / "model.gguf")


def nothing(done: float, total: float | None) -> None:
    pass


@pytest.fixture
def source() -> Same:
    return Same()


@pytest.fixture
def cache(tmp_path: Path, source: Same) -> WeightCache:
    folder = tmp_path / "weights"
    return WeightCache(
        folder,
        sources={source.scheme: source},
        roots=(),
        users=dict,
        room=Room(folder, reserve_bytes=0, budget_bytes=None),
        secrets={},
        agent="agent-1",
    )


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Something of the node's owner."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious.gguf").write_bytes(CONTENT)
    (folder / "entry.json").write_text("{}")
    return folder


async def test_removing_one_of_two_that_are_the_same_leaves_the_other(
    cache: WeightCache, source: Same
) -> None:
    one, two = [await cache.ensure(ref, report=nothing) for ref in ("same:a", "same:b")]
    assert [entry.size_bytes for entry in await cache.entries()] == [len(CONTENT)] * 2
    await cache.remove("same:a")
    assert not one.exists()
    assert two.read_bytes() == CONTENT
    assert await cache.ensure("same:b", report=nothing) == two
    assert source.fetches == 2


async def test_a_link_that_leads_outside_is_unlinked_and_nothing_else(
    cache: WeightCache, outside: Path
) -> None:
    path = await cache.ensure("same:a", report=nothing)
    (path.parent / "folder").symlink_to(outside, target_is_directory=True)
    (path.parent / "file.gguf").symlink_to(outside / "precious.gguf")
    (entry,) = await cache.entries()
    assert entry.size_bytes == len(CONTENT), "what lies elsewhere is not ours to count"
    await cache.remove("same:a")
    assert not path.parent.exists()
    assert (outside / "precious.gguf").read_bytes() == CONTENT


async def test_an_entry_that_is_itself_a_link_is_unlinked(
    cache: WeightCache, outside: Path
) -> None:
    path = await cache.ensure("same:a", report=nothing)
    home = path.parent.parent
    moved = outside / "moved"
    home.rename(moved)
    home.symlink_to(moved, target_is_directory=True)
    await cache.remove("same:a")
    assert not home.is_symlink()
    assert (moved / "data" / "model.gguf").read_bytes() == CONTENT
    assert (moved / "entry.json").exists()


@pytest.mark.parametrize("leads", ["nowhere", "outside"])
async def test_a_link_in_place_of_a_file_counts_as_missing(
    cache: WeightCache, source: Same, outside: Path, leads: str
) -> None:
    path = await cache.ensure("same:a", report=nothing)
    path.unlink()
    target = outside / "precious.gguf"
    path.symlink_to(target if leads == "outside" else outside / "gone.gguf")
    (entry,) = await cache.entries()
    assert entry.state == "partial"
    assert entry.size_bytes < len(CONTENT)
    assert await cache.ensure("same:a", report=nothing) == path
    assert not path.is_symlink()
    assert path.read_bytes() == target.read_bytes() == CONTENT
    assert source.fetches == 2
