"""Measure what has a bar beside CPU per request: latency, lag, workers, TLS, memory.

    python bench/limits.py [--only lag] [--rounds 5]

One line each, with its bar. See bench/run.py for the method; each figure is the median of the
rounds, those of memory are taken once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from run import (
    ENGINES,
    HERE,
    KEY,
    LOADS,
    PORT,
    Load,
    command,
    cpu_s,
    measure,
    memory_kb,
    running,
    tree,
)

MIB = 1024 * 1024
STREAMS = 1_000
STALLED = 20
RATE = 2_000


@contextmanager
def served(
    target: str = "llmgw", *, interval_ms: int = 20, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[int]]:
    """Run engines and a target; yields the target's processes."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        words = [str(HERE / "build/engine"), ",".join(map(str, ENGINES)), "-i", str(interval_ms)]
        engine = stack.enter_context(running(words, {}, ENGINES[0], 0))
        if target == "direct":
            yield [engine]
            return
        started = command(target, PORT, folder)
        if started is None:
            raise RuntimeError(f"{target} is not installed")
        yield tree(stack.enter_context(running(started[0], {**started[1], **env}, PORT, 1)))


def median(rounds: int, once: Callable[[], float]) -> float:
    return statistics.median(once() for _ in range(rounds))


def latency(rounds: int) -> Iterator[str]:
    """Latencies at one connection, less those of the engine alone, each of the same round."""
    seen: dict[str, list[tuple[float, float]]] = {"nginx": [], "llmgw": []}
    for _ in range(rounds):
        direct = _latency_us("direct")
        for target, found in seen.items():
            p50, p99 = _latency_us(target)
            found.append((p50 - direct[0], p99 - direct[1]))
    ours50, ours99 = (statistics.median(column) for column in zip(*seen["llmgw"], strict=True))
    nginx50, nginx99 = (statistics.median(column) for column in zip(*seen["nginx"], strict=True))
    yield f"added latency, p50 | {ours50:.0f} us (nginx {nginx50:.0f}) | 100 us"
    yield f"added latency, p99 | {ours99:.0f} us | {nginx99 + 300:.0f} us: nginx's + 300"


def _latency_us(target: str) -> tuple[float, float]:
    with served(target) as pids:
        port = ENGINES[0] if target == "direct" else PORT
        seen = measure(LOADS[0], port, pids, 1.5)
    return seen["p50_us"], seen["p99_us"]


def lag(rounds: int) -> Iterator[str]:
    """How late the event loop is while 64 connections ask as fast as they can, and with streams."""
    for load in (Load("request, 64", 64), Load("stream", 256, events=100_000, interval_ms=50)):
        late: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            noted = Path(folder, "lag")
            with served(interval_ms=load.interval_ms, env={"LAG": str(noted)}) as pids:
                for _ in range(rounds):
                    measure(load, PORT, pids, 2.0)
                late = [float(line) for line in noted.read_text().split()]
        p99 = statistics.quantiles(late, n=100)[98]
        yield f"lag of the loop, p99, {load.name} | {p99:.1f} ms | 5 ms"


def workers(rounds: int) -> Iterator[str]:
    """CPU of a request at a fixed rate, by one process and by two that share the port."""

    def cost(count: int) -> float:
        with served(env={"WORKERS": str(count)}) as pids:
            return measure(Load("rate", 64, rate=RATE), PORT, pids, 2.0)["cpu_us"]

    pairs = [(cost(1), cost(2)) for _ in range(rounds)]
    one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
    yield f"two workers at {RATE} requests/s | {two:.0f} us, one {one:.0f}: {two / one:.2f} | 1.10"


def tls(rounds: int) -> Iterator[str]:
    """What TLS adds to a request on a connection that stays, and to a connection."""
    with tempfile.TemporaryDirectory() as folder:
        chain, key = _certificate(Path(folder))

        def cost(files: str, requests: int, *, closes: bool) -> float:
            context = ssl.create_default_context(cafile=chain) if files else None
            with served(env={"TLS": files} if files else {}) as pids:
                _ask(context, 20, closes=closes)
                before = cpu_s(pids)
                _ask(context, requests, closes=closes)
                return (cpu_s(pids) - before) / requests * 1e6

        for what, requests, closes in (("request", 3_000, False), ("connection", 500, True)):
            plain = median(rounds, lambda: cost("", requests, closes=closes))  # noqa: B023
            secure = median(rounds, lambda: cost(f"{chain},{key}", requests, closes=closes))  # noqa: B023
            yield f"TLS, a {what} more | {secure - plain:.0f} us ({plain:.0f} without) | none"


def _ask(context: ssl.SSLContext | None, count: int, *, closes: bool) -> None:
    body = b'{"model":"bench","messages":[{"role":"user","content":"hi"}]}'
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection: http.client.HTTPConnection | None = None
    for _ in range(count):
        if connection is None:
            connection = (
                http.client.HTTPSConnection("localhost", PORT, context=context)
                if context
                else http.client.HTTPConnection("localhost", PORT)
            )
        connection.request("POST", "/v1/chat/completions", body, headers)
        connection.getresponse().read()
        if closes:
            connection.close()
            connection = None
    if connection is not None:
        connection.close()


def _certificate(folder: Path) -> tuple[str, str]:
    """Write a certificate of `localhost` and its key (P-256), and return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files = folder / "chain.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return str(files[0]), str(files[1])


def streams(_rounds: int) -> Iterator[str]:
    """Memory of a stream that is open and silent."""
    with served(interval_ms=30_000) as pids:
        before = memory_kb(pids)
        words = [str(HERE / "build/load"), str(PORT), "-c", str(STREAMS), "-k", KEY]
        words += ["-s", "100000", "-w", "0", "-t", "4"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL):
            time.sleep(3)
            each = (memory_kb(pids) - before) / STREAMS
        yield f"an idle stream | {each:.1f} kB | 12 kB"


def idle(_rounds: int) -> Iterator[str]:
    """Memory of `llmgw router` that has nothing to do, its table empty."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text("none")
        words = [sys.executable, "-m", "llmgw", "router"]
        words += ["--server", f"http://127.0.0.1:{PORT + 20}"]
        words += ["--token-file", str(token), "--state-dir", folder]
        process = subprocess.Popen(
            [*words, "--listen", f"127.0.0.1:{PORT}"], stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(8)
            yield f"`llmgw router`, idle | {memory_kb(tree(process.pid)) / 1024:.0f} MB | 60 MB"
        finally:
            process.terminate()
            process.wait(10)


def prompt(_rounds: int) -> Iterator[str]:
    """What a prompt of 64 MB costs at most, all of it in memory."""
    body = b'{"model":"bench","messages":[{"role":"user","content":"%b"}]}' % (b"x" * (63 * MIB))
    with served() as pids:
        before = memory_kb(pids)
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        assert connection.getresponse().status == 200
        peak = max(_peak_kb(pid) for pid in pids)
        yield f"a prompt of 63 MB | {(peak - before) / 1024:.0f} MB | 80 MB"


def _peak_kb(pid: int) -> int:
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1])


def stalled(_rounds: int) -> Iterator[str]:
    """Memory of a client that asked for a stream and does not read, its engine talking."""
    with ExitStack() as stack:
        for port in ENGINES:
            engine = stack.enter_context(socket.create_server(("127.0.0.1", port)))
            threading.Thread(target=_talk, args=[engine], daemon=True).start()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        words, env = command("llmgw", PORT, folder) or ([], {})
        pids = tree(stack.enter_context(running(words, env, PORT, 1)))
        before = memory_kb(pids)
        body = json.dumps({"model": "bench", "stream": True, "messages": []})
        clients = [http.client.HTTPConnection("127.0.0.1", PORT) for _ in range(STALLED)]
        for client in clients:
            headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
            client.request("POST", "/v1/chat/completions", body, headers)
        time.sleep(3)
        yield f"a stalled client | {(memory_kb(pids) - before) / STALLED / 1024:.2f} MB | 1 MB"
        for client in clients:
            client.close()


def _talk(listener: socket.socket) -> None:
    """Answer each connection with an endless stream, as fast as it is taken."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_talk_to, args=[peer], daemon=True).start()


def _talk_to(peer: socket.socket) -> None:
    text = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"y" * 8_000)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    try:
        while asked := peer.recv(65536):
            if b'"stream": true' not in asked:
                peer.sendall(whole)
                continue
            peer.sendall(head)
            while True:
                peer.sendall(b"%x\r\n%b\r\n" % (len(text), text))
    except OSError:
        pass
    finally:
        peer.close()


ALL = (latency, lag, workers, tls, streams, idle, prompt, stalled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names, by commas")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(HERE)], check=True)
    print("| what | measured | bar |\n|---|---|---|")
    for measured in ALL:
        if not given.only or measured.__name__ in given.only.split(","):
            try:
                for line in measured(given.rounds):
                    print(f"| {line} |", flush=True)
            except RuntimeError as error:
                print(f"{measured.__name__} is left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
