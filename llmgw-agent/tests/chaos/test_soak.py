"""F32: load for as long as it takes, with a random fault each 20 s. Run by `nox -s soak`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from llmgw.testing.fleet import Fleet, Member
from llmgw.testing.site import wait_for
from llmgw.testing.streams import Stream, StreamLoad

SOAK_S = float(os.environ.get("LLMGW_SOAK_S", "0"))  #: the table's: 3600
SEED = int(os.environ.get("LLMGW_SOAK_SEED", "1"))
STREAMS = int(os.environ.get("LLMGW_CHAOS_STREAMS", "60"))
EVERY_S = 20.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(0),
    pytest.mark.skipif(not SOAK_S, reason="only in `nox -s soak`"),
]

Figures = Callable[..., None]


class Size(NamedTuple):
    """What one process holds."""

    files: int
    rss_kib: int


def size_of(pid: int) -> Size:
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return Size(files=len(list(Path(f"/proc/{pid}/fd").iterdir())), rss_kib=int(rss))


class Faults:
    """The things that go wrong. The second server, router and agent are never killed."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self.count: Counter[str] = Counter()
        self.blamed: set[tuple[str, int]] = set()  #: routers whose streams may have ended
        self.engine_deaths: list[float] = []
        self._fleet = fleet
        self._rng = rng
        self._all = (
            self.kill_server,
            self.kill_router,
            self.kill_agent,
            self.kill_engine,
            self.kill_shim,
            self.freeze_agent,
            self.freeze_leader,
        )

    def one(self) -> None:
        fault = self._rng.choice(self._all)
        self.count[fault.__name__] += 1
        fault()

    def kill_server(self) -> None:
        self._again(self._fleet.servers[0])

    def kill_router(self) -> None:
        self.blamed.add(self._fleet.routers[0].target)
        self._again(self._fleet.routers[0])

    def kill_agent(self) -> None:
        self._again(self._fleet.agents[0])

    def kill_engine(self) -> None:
        engine = self._some_engine()
        self.engine_deaths.append(time.monotonic())
        os.kill(engine, signal.SIGKILL)

    def kill_shim(self) -> None:
        stat = Path(f"/proc/{self._some_engine()}/stat").read_text()
        self.engine_deaths.append(time.monotonic())
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    def freeze_agent(self) -> None:
        self._freeze(self._rng.choice(self._fleet.agents), 8.0)

    def freeze_leader(self) -> None:
        self._freeze(self._fleet.leader(), 16.0)

    def _some_engine(self) -> int:
        return self._rng.choice(sorted(self._fleet.wait_ready(4).values()))

    def _again(self, member: Member) -> None:
        member.kill()
        time.sleep(self._rng.uniform(0.0, 3.0))
        member.start()

    def _freeze(self, member: Member, for_s: float) -> None:
        member.freeze()
        time.sleep(for_s)
        member.thaw()

    def explains(self, broken: Stream) -> bool:
        """Whether a stream's end is one of those that a fault is allowed to cause."""
        if broken.target in self.blamed:
            return True
        return broken.reached_client and any(
            broken.began <= died <= broken.ended for died in self.engine_deaths
        )


@pytest.mark.timeout(SOAK_S + 600)
def test_random_faults_under_load_leave_nothing_behind(
    postgres_url: str, make_fleet: Callable[..., Fleet], figures: Figures
) -> None:
    """F32: soak, L for 1 h with a random fault each 20 s."""
    fleet = make_fleet(store_url=postgres_url)
    models = [fleet.model("m", replicas=4, tokens=20, token_delay=0.5)]
    for make in (lambda: fleet.server(models), fleet.agent, fleet.router):
        make()
        make()
    fleet.wait_ready(4)
    for router in fleet.routers:
        wait_for("it serves", lambda: router.serves("m"), 30)  # noqa: B023 - at once
    faults = Faults(fleet, random.Random(SEED))
    spared = (fleet.servers[1], fleet.routers[1], fleet.agents[1])
    sizes: dict[str, list[Size]] = {member.name: [] for member in spared}
    epochs = [fleet.leader().epoch()]
    targets = [router.target for router in fleet.routers]
    with StreamLoad(targets, model="m", count=STREAMS) as load:
        end = time.monotonic() + SOAK_S
        while time.monotonic() < end:
            began = time.monotonic()
            faults.one()
            wait_for("the fleet is whole again", lambda: whole(fleet), 120)
            epochs.append(fleet.leader().epoch())
            for member in spared:
                sizes[member.name].append(size_of(member.pid))
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
    unexplained = [item for item in load.broken if not faults.explains(item)]
    figures(
        F32=f"{SOAK_S:.0f} s, seed {SEED}: {sum(faults.count.values())} faults "
        f"{dict(faults.count)}; {load.whole} streams whole, {len(load.broken)} ended by a killed "
        f"router or engine, {len(unexplained)} others; {len(set(epochs))} epochs",
        **{f"F32 {name}": growth(found) for name, found in sizes.items()},
    )
    assert unexplained == [], Counter(item.problem[-120:] for item in unexplained)
    assert epochs == sorted(epochs)
    if sum(faults.count.values()) >= 20:  # fewer looks tell nothing of growth
        for found in sizes.values():
            assert settled(found)


def whole(fleet: Fleet) -> bool:
    """Four engines are ready, each one a process of its own, and nothing else is left of old ones."""
    leader = next((server for server in fleet.servers if server.leads()), None)
    if leader is None:
        return False
    ready = leader.ready()
    trees = sum(len(agent.tree()) for agent in fleet.agents)
    return len(ready) == 4 and len(leader.shards()) == 4 and trees == 4


def growth(found: list[Size]) -> str:
    quarter = len(found) // 4
    first, last = found[quarter], found[-1]
    return f"{first.files} -> {last.files} files, {first.rss_kib} -> {last.rss_kib} KiB"


def settled(found: list[Size]) -> bool:
    """Whether the later half holds no more than the earlier one, by 3 % and a few connections."""
    half = len(found) // 2
    early, late = found[len(found) // 4 : half], found[half:]
    files = max(item.files for item in late) <= max(item.files for item in early) + 8
    return files and min(item.rss_kib for item in late) <= 1.03 * max(
        item.rss_kib for item in early
    )
