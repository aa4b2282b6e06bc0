"""Wait until every worker of a replica listens, then become its head.

    python -I meet.py 10.0.0.2:20000 … -- llama-server …

Run by path, standard library only. A head that finds a worker absent does not wait for it: it
aborts, and all ranks would have to be started again. Exit code 4: a worker did not come.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import NoReturn

_LIMIT_S = 120.0
_POLL_S = 0.2
# For a moment it may still be the agent there that listens, while ranks meet before they begin.
_STEADY_S = 3.0


def main() -> NoReturn:
    split = sys.argv.index("--")
    workers, program = sys.argv[1:split], sys.argv[split + 1 :]
    deadline = time.monotonic() + _LIMIT_S
    steady_since = time.monotonic()
    while time.monotonic() - steady_since < _STEADY_S:
        time.sleep(_POLL_S)
        absent = [worker for worker in workers if not listens(worker)]
        if absent:
            steady_since = time.monotonic()
            if steady_since > deadline:
                os.write(2, f"llmgw: no rpc-server listens at {absent[0]}\n".encode())
                raise SystemExit(4)
    os.execv(program[0], program)  # noqa: S606 -- the command that the adapter made


def listens(worker: str) -> bool:
    host, _, port = worker.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
