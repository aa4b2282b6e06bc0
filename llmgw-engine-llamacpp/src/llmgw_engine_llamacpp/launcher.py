"""Serve one GGUF by the `xllamacpp` wheel, which has no command line of its own.

    python -I launcher.py --params JSON --drain-s SECONDS

Run by path inside the engine's environment: it imports nothing but the standard library and
the wheel. The API key comes in LLAMA_API_KEY. Exit codes: 0 drained after SIGTERM, 1 the model
could not be served (the reason is in the native log lines marked ` E `), 2 a parameter that
this build does not take, 3 the wheel is missing.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

_BUSY = re.compile(r"^llamacpp:requests_(?:processing|deferred) (\d+)", re.MULTILINE)
_POLL_S = 0.1
# The counters fall when the last token is computed; it still has to reach the client.
_FLUSH_S = 0.3


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="llmgw llama.cpp launcher")
    parser.add_argument("--params", required=True, help="attribute of CommonParams -> value, JSON")
    parser.add_argument("--drain-s", type=float, default=25.0)
    given = parser.parse_args()
    try:
        import xllamacpp
    except ImportError as error:
        fail(3, f"cannot import xllamacpp in {sys.prefix}: {error}")
    params = xllamacpp.CommonParams()
    try:
        for name, value in json.loads(given.params).items():
            assign(params, name, value, xllamacpp)
    except (AttributeError, TypeError, ValueError) as error:
        fail(2, f"bad parameter: {error}")
    if key := os.environ.pop("LLAMA_API_KEY", ""):
        params.api_keys = [key]
    # Until here, and while the model loads, SIGTERM keeps its default: there is nothing to drain.
    try:
        server = xllamacpp.Server(params)  # binds, then returns when the model is loaded
    except RuntimeError as error:
        fail(1, f"llama.cpp does not serve: {error}")
    say(f"{resident_mib():.0f} MiB resident")  # the library keeps what it took to itself
    wait_for_sigterm()
    drain(server, given.drain_s)
    # The library has no stop, and hangs when it is destroyed with a request in flight.
    os._exit(0)


def assign(params: Any, name: str, value: Any, library: Any) -> None:
    """Set one attribute, dotted for a nested one, in the type that it has already."""
    *owners, last = name.split(".")
    for owner in owners:
        params = getattr(params, owner)
    present = getattr(params, last)
    if name == "lora_adapters":
        value = [lora(library, path, scale) for path, scale in value]
    elif isinstance(present, enum.Enum):
        value = member(type(present), str(value))
    elif isinstance(present, set):
        value = set(value)
    elif isinstance(present, list) and len(present) > len(value):
        value = [*value, *present[len(value) :]]  # tensor_split has a fixed length
    setattr(params, last, value)


def lora(library: Any, path: str, scale: float) -> Any:
    adapter = library.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = path, scale
    return adapter


def member(kind: type[enum.Enum], word: str) -> enum.Enum:
    """Return the member for a word of the command line: `q8_0` is GGML_TYPE_Q8_0."""
    end = "_" + word.upper().replace("-", "_")
    for name, found in kind.__members__.items():
        if name.endswith(end):
            return found
    raise ValueError(f"{kind.__name__} has no {word!r}")


def wait_for_sigterm() -> None:
    """Wait for the first SIGTERM; a second one ends the process at once."""
    # A wake-up descriptor, since the kernel may deliver the signal to one of the server's threads,
    # where it would not interrupt this one.
    read_end, write_end = socket.socketpair()
    write_end.setblocking(False)
    signal.set_wakeup_fd(write_end.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    say("serving")
    while signal.SIGTERM not in read_end.recv(64):
        pass
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def drain(server: Any, limit_s: float) -> None:
    """Return when no request is computed or waits, or the limit is over."""
    say("draining")
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not sum(map(int, _BUSY.findall(server.handle_metrics()))):
            time.sleep(_FLUSH_S)
            return
        time.sleep(_POLL_S)
    say(f"requests were still in flight after {limit_s:g} s")


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def say(text: str) -> None:
    # Straight to the descriptor, where the library writes too: in order and never buffered.
    os.write(2, f"llmgw: {text}\n".encode())


def fail(code: int, text: str) -> NoReturn:
    say(text)
    # Not at once: the library logs on a thread of its own, and its last lines are the reason.
    raise SystemExit(code)


if __name__ == "__main__":
    main()
