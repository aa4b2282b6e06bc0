"""One of two agents on one folder of weights: fetches, uses and removes at random, and checks.

    python shared_cache_program.py FOLDER AGENT SEED

Exits with 1 when something that it uses is not what it should be.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from pathlib import Path

import anyio

from llmgw.contracts.weights import FetchContext
from llmgw.domain.ids import ShardId
from llmgw.domain.replicas import FailureCause
from llmgw.errors import PermanentError
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.room import Room

REFS = tuple(f"slow:{name}" for name in "abcd")
SIZE = 64 << 10
ROUNDS = 60


def expected(ref: str) -> bytes:
    return hashlib.sha256(ref.encode()).digest() * (SIZE // 32)


class Slow:
    """Writes a file in pieces, so that another process can come in between."""

    scheme = "slow"

    def problem(self, ref: str) -> str | None:
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        context.reserve(SIZE)
        path = context.folder / "model.gguf"
        content = expected(ref)
        with path.open("wb") as file:
            for start in range(0, SIZE, SIZE // 4):
                file.write(content[start : start + SIZE // 4])
                file.flush()
                context.report(file.tell(), SIZE)
                time.sleep(0.001)
        return path


async def main(folder: Path, agent: str, seed: int) -> None:
    draw = random.Random(seed)
    users: dict[ShardId, frozenset[str]] = {}
    cache = WeightCache(
        folder,
        sources={"slow": Slow()},
        roots=(),
        users=lambda: users,
        room=Room(folder, reserve_bytes=0, budget_bytes=3 * SIZE),
        secrets={},
        agent=agent,
    )
    had = 0
    async with anyio.create_task_group() as group:
        await group.start(cache.run)
        for _ in range(ROUNDS):
            ref = draw.choice(REFS)
            users[ShardId("r1.0")] = frozenset({ref})
            try:
                path = await cache.ensure(ref, report=lambda _done, _total: None)
            except StepFailed as failed:
                if failed.failure.cause is not FailureCause.DISK_FULL:
                    raise
                continue  # the other one uses all that there is room for
            had += 1
            for _ in range(3):
                assert path.read_bytes() == expected(ref), f"{ref} is not what it was"
                await anyio.sleep(0.002)
            users.clear()
            if draw.random() < 0.3:
                try:
                    await cache.remove(draw.choice(REFS))
                except PermanentError:
                    pass  # not there, or used by the other one
        group.cancel_scope.cancel()
    sys.stdout.write(f"{had}\n")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
