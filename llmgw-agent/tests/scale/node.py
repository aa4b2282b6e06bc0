"""What one agent costs, and how quick it is: eight engines idle, then sixty-four to adopt.

    nox -s scale -- node [--seconds 60]

Real processes over mutual TLS, with the port where other nodes get weights open; the engine is the
fake one. Prints the figures beside their bars, and ends with 1 if one is missed by more than a
busy machine explains: a bar of time by twice, one of the share of a core by half, one of memory by
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from llmgw.testing.fleet import TOKEN, Agent, Fleet, Server
from llmgw.testing.site import wait_for
from llmgw_agent.node import shim

Figure = tuple[str, float, float, float]  #: what, how much, the bar, and what noise may add to it

#: Of the bar: what another program on the same cores may cost, in time and in caches.
QUIET, CACHES, CORES = 1.0, 1.5, 2.0

SHARDS, ADOPTED = 8, 64
TRIES = 20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def alone_mb(pid: int, shims: list[int]) -> float:
    """Return PSS as it is where the agent and its shims are the machine's only Python.

    Here the server, the engines and this program share the same libraries.
    """
    with_shims = {line[-1] for shim in shims for line in mappings(shim) if len(line) == 6}
    total, sharers = 0.0, 1
    for fields in mappings(pid):
        if "-" in fields[0]:
            sharers = 1 + len(shims) if fields[-1] in with_shims else 1
        elif fields[0].startswith("Private_"):
            total += int(fields[1])
        elif fields[0].startswith("Shared_"):
            total += int(fields[1]) / sharers
    return total / 1000


def mappings(pid: int) -> list[list[str]]:
    """Return the lines of smaps in words: one with a path per mapping, then its figures."""
    return [line.split() for line in Path(f"/proc/{pid}/smaps").read_text().splitlines()]


def shim_of(engine: int) -> int:
    return int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])


def ports() -> tuple[int, int]:
    """As many as are needed, where another fleet of this machine is not likely to be."""
    first = 20000 + 200 * secrets.randbelow(49)
    return first, first + 199


def idle(home: Path, seconds: float) -> list[Figure]:
    """With eight engines: memory, cores, logs, and a death."""
    fleet = Fleet(home)
    try:
        model = fleet.model("m", replicas=SHARDS)
        server = fleet.server([model], control={"port_range": ports()})
        agent = fleet.agent()
        engines = fleet.wait_ready(SHARDS)
        time.sleep(15)  # what is done once after a start is over
        before, began = cpu_s(agent.pid), time.monotonic()
        time.sleep(seconds)
        cores = (cpu_s(agent.pid) - before) / (time.monotonic() - began)
        shims = [shim_of(pid) for pid in engines.values()]
        memory, alone = pss_mb(agent.pid), alone_mb(agent.pid, shims)
        asked = [log_request(server, agent, shard) for shard in [*engines, "agent"]]
        return [
            ("agent with 8 shards, MB PSS here", memory, 70, QUIET),
            ("agent with 8 shards, MB PSS alone", alone, 70, QUIET),
            ("agent with 8 shards, % of a core", 100 * cores, 1, CACHES),
            ("largest shim, MB PSS", max(map(pss_mb, shims)), 8, QUIET),
            ("log request, slowest of 9, ms", 1000 * max(asked), 200, CORES),
            ("death of an engine seen, s", max(deaths(fleet, server)), 2, CORES),
        ]
    finally:
        fleet.close()


def log_request(server: Server, agent: Agent, source: str) -> float:
    """Return how long an operator waits for the last hundred lines."""
    query = {"source": source, "lines": "100"}
    url = f"{server.admin_url}/admin/v1/nodes/{agent.name}/logs"
    headers = {"authorization": f"Bearer {TOKEN}"}
    began = time.monotonic()
    httpx.get(url, params=query, headers=headers, trust_env=False).raise_for_status()
    return time.monotonic() - began


def deaths(fleet: Fleet, server: Server) -> list[float]:
    """Kill three engines, and return how long it was until the server no longer had each as ready."""
    took = []
    for shard, pid in tuple(fleet.wait_ready(SHARDS).items())[:3]:

        def is_seen(shard: str = shard, pid: int = pid) -> bool:
            return server.ready().get(shard) != pid

        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait_for("it is seen", is_seen, 10)
        took.append(time.monotonic() - began)
    return took


def adoption(home: Path) -> list[Figure]:
    """Kill an agent of sixty-four engines; the next one counts once it runs."""
    fleet = Fleet(home)
    try:
        model = fleet.model("m", replicas=ADOPTED)
        fleet.server([model], control={"port_range": ports()})
        agent = fleet.agent()
        engines = set(fleet.wait_ready(ADOPTED, 300).values())
        time.sleep(10)

        def has_adopted() -> bool:
            status = agent.status()
            shards = [item["shard"] for item in status.get("shards", ())]
            ready = {item["pid"] for item in shards if item["state"] == "ready"}
            return status.get("pid") == agent.pid and ready == engines

        took = []
        for _ in range(5):
            agent.kill()
            began = time.monotonic()
            agent.start()
            wait_for("all are adopted", has_adopted, 30)
            took.append(time.monotonic() - began)
        return [(f"adoption of {ADOPTED}, median of 5, s", statistics.median(took), 3, CORES)]
    finally:
        fleet.close()


def shim_start(home: Path) -> list[Figure]:
    """From the call that starts a shim until it has written that its engine runs."""
    took = []
    for number in range(TRIES):
        folder = home / str(number)
        folder.mkdir(parents=True)
        record = {
            "run": 1,
            "argv": ["/bin/true"],
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(folder),
            "port": None,
            "token": "t",
            "device_locks": [],
            "cgroup": None,
            "oom_score_adj": 500,
            "log_file_bytes": 1 << 20,
            "log_files": 5,
        }
        (folder / "spec.json").write_text(json.dumps(record))
        command = [sys.executable, "-I", "-S", shim.__file__, str(folder), "t"]
        began = time.monotonic()
        with subprocess.Popen(command, start_new_session=True, env={}):
            while not (folder / "state.json").exists():
                time.sleep(0.001)
            took.append(time.monotonic() - began)
    return [(f"start of a shim, median of {TRIES}, ms", 1000 * statistics.median(took), 50, CORES)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of idling")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        homes = [Path(folder) / name for name in ("idle", "adoption")]
        for home in homes:
            home.mkdir()
        missed = show(shim_start(Path(folder) / "shims"))
        missed += show(idle(homes[0], options.seconds))
        missed += show(adoption(homes[1]))
    return int(missed > 0)


def show(figures: list[Figure]) -> int:
    """Print them; return how many bars are missed."""
    for what, figure, bar, noise in figures:
        verdict = "ok" if figure <= bar else "over" if figure <= noise * bar else "MISSED"
        load = os.getloadavg()[0]
        sys.stdout.write(f"{what:36} {figure:9.2f}  bar {bar:g}  {verdict}  (load {load:.1f})\n")
        sys.stdout.flush()
    return sum(figure > noise * bar for _, figure, bar, noise in figures)


if __name__ == "__main__":
    sys.exit(main())
