"""Start this node's part of a Ray cluster that belongs to one replica, and on its head serve.

    python -I ray_rank.py --own IP --head IP:PORT --devices N [serve MODEL …]

Run by path inside vLLM's environment. With `serve …` this is the head: Ray is started behind it
and the process becomes vLLM, which waits by itself until the other nodes have joined. Without,
the process is Ray and lives as long as the cluster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

_RAY = (sys.executable, "-Iu", "-m", "ray.scripts.scripts", "start", "--disable-usage-stats")


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="llmgw ray rank", allow_abbrev=False)
    parser.add_argument("--own", required=True, help="address of this node")
    parser.add_argument("--head", required=True, help="where the cluster meets, HOST:PORT")
    parser.add_argument("--devices", required=True, help="how many this node gives")
    given, served = parser.parse_known_args()
    ray = [*_RAY, f"--node-ip-address={given.own}", f"--num-gpus={given.devices}"]
    if not served:
        become([*ray, f"--address={given.head}", "--block"])
    port = given.head.rpartition(":")[2]
    start = [*ray, "--head", f"--port={port}", "--include-dashboard=false"]
    if code := subprocess.run(start, check=False).returncode:
        os.write(2, f"llmgw: ray could not be started, exit code {code}\n".encode())
        raise SystemExit(code)
    os.environ["RAY_ADDRESS"] = given.head
    serve = str(Path(__file__).with_name("serve.py"))
    become([sys.executable, "-Iu", serve, *served])


def become(argv: list[str]) -> NoReturn:
    os.execv(argv[0], argv)  # noqa: S606 - one process less to watch, and signals reach it


if __name__ == "__main__":
    main()
