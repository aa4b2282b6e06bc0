"""A stand-in engine that misbehaves on request: a program of its own, standard library only.

    python fake_engine.py --port 20000 --ready-after 2 --children 2 --ignore-term

For tests of whatever supervises engines. It speaks enough of the OpenAI API for a readiness
check, streams at a given pace, and has a metrics page with the counters `fake_*`. If the
environment has FAKE_ENGINE_KEY, all but `/health` asks for it. At SIGUSR1 it says no further
token, and goes on being healthy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

_HELPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake_engine")
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any; the chosen one is printed")
    add("--served-name", action="append", default=[], help="repeatable; the first is shown")
    add("--ready-after", type=float, default=0.0, help="seconds of answering 503")
    add("--listen-after", type=float, default=0.0, help="seconds of refusing connections")
    add("--health-lies", action="store_true", help="200 from the start, ready or not")
    add("--hang-completions", action="store_true", help="accept and never answer; health is 200")
    add("--fail-completions", type=int, default=0, metavar="STATUS", help="answer this instead")
    add("--crash-every", type=int, default=0, metavar="N", help="end at each Nth completion")
    add("--exit-after", type=float, default=None, metavar="S", help="end by itself")
    add("--crash-on", default="", metavar="TEXT", help="end at a completion that holds it")
    add("--exit-code", type=int, default=1, help="of --exit-after and --crash-…")
    add("--ignore-term", action="store_true")
    add("--drain", action="store_true", help="after SIGTERM, end open requests first")
    add("--children", type=int, default=0, help="helpers in sessions of their own, deaf to SIGTERM")
    add("--say", action="append", default=[], help="line for stdout at start; repeatable")
    add("--say-every", type=float, default=0.0, metavar="S", help="a numbered line this often")
    add("--can-sleep", action="store_true", help="has /sleep, /wake_up and /is_sleeping")
    add("--sleep-lies", action="store_true", help="accept /sleep and stay awake")
    add("--wake-fails", action="store_true", help="refuse /wake_up")
    add("--tokens", type=int, default=5)
    add("--token-delay", type=float, default=0.0, metavar="S")
    return parser


class State:
    """What the threads share."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.names = given.served_name or ["fake"]
        self.key = os.environ.pop("FAKE_ENGINE_KEY", "")
        self.ready_at: float = time.monotonic() + given.ready_after
        self.lock = threading.Lock()
        self.running = 0
        self.completions = 0
        self.prompts = 0
        self.generated = 0
        self.is_still = False
        self.is_asleep = False
        self.adapters: dict[str, str] = {}

    @property
    def ready(self) -> bool:
        return time.monotonic() >= self.ready_at

    def metrics(self) -> str:
        return (
            f"fake_requests_running {self.running}\n"
            "fake_requests_waiting 0\n"
            f"fake_prompt_tokens_total {self.prompts}\n"
            f"fake_generated_tokens_total {self.generated}\n"
        )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ClassVar[State]

    def do_GET(self) -> None:
        given = self.state.given
        if self.path == "/health":
            healthy = self.state.ready or given.health_lies
            return self.answer(200 if healthy else 503, {"status": "ok" if healthy else "loading"})
        if not self.welcome():
            return None
        if self.path == "/metrics":
            return self.send(200, "text/plain; version=0.0.4", self.state.metrics().encode())
        if self.path == "/v1/models":
            models = [{"id": name, "object": "model"} for name in self.state.names]
            for name, path in self.state.adapters.items():
                models.append({"id": name, "root": path, "parent": self.state.names[0]})
            return self.answer(200, {"object": "list", "data": models})
        if self.path == "/is_sleeping" and given.can_sleep:
            return self.answer(200, {"is_sleeping": self.state.is_asleep})
        return self.error(404, "no such path")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if not self.welcome():
            return None
        if self.state.given.can_sleep and self.path in ("/sleep?level=1", "/wake_up"):
            return self.rest(asleep=self.path != "/wake_up")
        if self.path.endswith("_lora_adapter"):
            return self.adapt(body)
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            return self.error(404, "no such path")
        if self.state.is_asleep:
            return self.error(500, "asked while it sleeps")
        if not self.state.ready:
            return self.error(503, "loading")
        state, given = self.state, self.state.given
        with state.lock:
            state.running += 1
            state.completions += 1
            number = state.completions
        try:
            if given.crash_every and number % given.crash_every == 0:
                os._exit(given.exit_code)
            if given.crash_on and given.crash_on in json.dumps(body):
                os._exit(given.exit_code)
            if given.hang_completions:
                time.sleep(3600)
            if given.fail_completions:
                return self.error(given.fail_completions, "told to fail")
            return self.generate(body)
        finally:
            with state.lock:
                state.running -= 1

    def rest(self, *, asleep: bool) -> None:
        if not asleep and self.state.given.wake_fails:
            return self.error(500, "cannot wake")
        self.state.is_asleep = asleep and not self.state.given.sleep_lies
        return self.answer(200, {})

    def adapt(self, body: dict[str, object]) -> None:
        name, path = str(body["lora_name"]), str(body.get("lora_path", ""))
        if not path:
            del self.state.adapters[name]
        elif not os.path.isdir(path):  # noqa: PTH112 -- a program of few imports
            return self.error(404, f"No adapter found for {path}")
        else:
            self.state.adapters[name] = path
        return self.answer(200, {})

    def generate(self, body: dict[str, object]) -> None:
        asked = body.get("max_tokens")
        count = (
            min(asked, self.state.given.tokens)
            if isinstance(asked, int)
            else self.state.given.tokens
        )
        words = [f"w{number} " for number in range(count)]
        self.prompt()
        if not body.get("stream"):
            for _ in words:
                self.token()
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return self.answer(200, self.chunk(body, choice, "chat.completion"))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for word in words:
            self.token()
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            self.event(json.dumps(self.chunk(body, choice, "chat.completion.chunk")))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def prompt(self) -> None:
        with self.state.lock:
            self.state.prompts += not self.state.is_still

    def token(self) -> None:
        time.sleep(3600 if self.state.is_still else self.state.given.token_delay)
        with self.state.lock:
            self.state.generated += 1

    def chunk(
        self, body: dict[str, object], choice: dict[str, object], kind: str
    ) -> dict[str, object]:
        asked = body.get("model")
        name = asked if asked in self.state.adapters else self.state.names[0]
        return {"id": "fake-1", "object": kind, "model": name, "choices": [choice]}

    def event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def welcome(self) -> bool:
        if self.state.key and self.headers.get("authorization") != f"Bearer {self.state.key}":
            self.error(401, "wrong key")
            return False
        return True

    def error(self, status: int, message: str) -> None:
        self.answer(status, {"error": {"message": message, "type": "fake", "code": status}})

    def answer(self, status: int, body: dict[str, object]) -> None:
        self.send(status, "application/json", json.dumps(body).encode())

    def send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - inherited name
        """Print nothing per request: tests read the output."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = False  # a taken port must be an error, as with the real engines

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when a client leaves."""


def serve(state: State) -> int:
    """Listen until SIGTERM; return the exit code."""
    given = state.given
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if given.ignore_term else stopped.set())
    signal.signal(signal.SIGUSR1, lambda *_: setattr(state, "is_still", True))
    for _ in range(given.children):
        subprocess.Popen([sys.executable, "-c", _HELPER], start_new_session=True)
    for line in given.say:
        say(line)
    if given.exit_after is not None:
        timer = threading.Timer(given.exit_after, os._exit, [given.exit_code])
        timer.daemon = True
        timer.start()
    if given.say_every:
        threading.Thread(target=chatter, args=[given.say_every], daemon=True).start()
    time.sleep(given.listen_after)
    Handler.state = state
    try:
        server = Server((given.host, given.port), Handler)
    except OSError as error:
        say(f"Error: cannot listen on {given.host}:{given.port}: {error}")
        return 1
    say(f"listening on {server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not stopped.wait(0.05):
        pass
    while given.drain and state.running:
        time.sleep(0.02)
    return 0


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def chatter(every_s: float) -> None:
    number = 0
    while True:
        say(f"line {number}")
        number += 1
        time.sleep(every_s)


if __name__ == "__main__":
    # Not by sys.exit, which would wait for the threads of hanging requests.
    os._exit(serve(State(arguments().parse_args())))
