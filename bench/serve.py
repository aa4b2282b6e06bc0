"""The router with every feature on, for measuring: `serve.py PORT ENGINE_PORT[,ENGINE_PORT]`.

Keys with a limit, admission, selection over two static endpoints, metrics, usage, access
records. `LOOP=asyncio` leaves uvloop out, `PROFILE` names a routing profile, `WORKERS=2` has two
processes share the port, `TLS=CHAIN,KEY` serves HTTPS, and `LAG=FILE` notes there each second by how
many milliseconds the event loop was late in each of some two hundred looks.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import anyio
import uvicorn

from llmgw.config.server import RouterSettings
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.keys import ApiKey, KeyLimits
from llmgw.router.app import Router
from llmgw.router.balancers import llmgw_balancers

SECRET = "bench"  # noqa: S105  # of a router that lives for a minute on loopback
KEY = f"llmgw_bench_{SECRET}"


def router(engine_ports: list[str], state_dir: Path) -> Router:
    """Return a router of model `bench`, which all of these engines serve."""
    made = Router(
        RouterSettings(default_profile=os.environ.get("PROFILE", "least_outstanding")),
        balancers={factory.name: factory for factory in llmgw_balancers()},
        state_dir=state_dir,
        keys_open=False,
    )
    secret_hash = hashlib.sha256(SECRET.encode()).hexdigest()
    limits = KeyLimits(concurrent_requests=100_000)
    made.keys.replace([ApiKey(id="bench", secret_hash=secret_hash, limits=limits)])
    made.publish_endpoints(
        tuple(
            Endpoint(
                id=EndpointId(f"engine-{port}"),
                url=f"http://127.0.0.1:{port}",
                models=(ModelName("bench"),),
            )
            for port in engine_ports
        ),
        Epoch(1),
    )
    return made


async def serve(port: int, engine_ports: list[str]) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if os.environ.get("WORKERS"):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    with tempfile.TemporaryDirectory() as folder:
        served = router(engine_ports, Path(folder))
        chain, _, key = os.environ.get("TLS", "").partition(",")
        config = uvicorn.Config(
            served.asgi,
            http=served.protocol,  # type: ignore[arg-type]  # any callable serves
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            ssl_certfile=chain or None,
            ssl_keyfile=key or None,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(served.run)
            tasks.start_soon(_settle_usage, served)
            if lag_file := os.environ.get("LAG"):
                tasks.start_soon(_note_lag, Path(lag_file))
            gc.collect()
            gc.freeze()
            await uvicorn.Server(config).serve(sockets=[listener])
            tasks.cancel_scope.cancel()


async def _settle_usage(served: Router) -> None:
    """Take usage away as the store would."""
    while True:
        await anyio.sleep(1.0)
        while (batch := served.ledger.batch()) is not None:
            served.ledger.settle(batch.id)


async def _note_lag(file: Path) -> None:
    """Look at the clock every 5 ms, and write down by how much it was later than that."""
    with file.open("w") as noted:
        while True:
            late = []
            for _ in range(200):
                before = time.monotonic()
                await anyio.sleep(0.005)
                late.append((time.monotonic() - before - 0.005) * 1e3)
            noted.write("".join(f"{ms:.3f}\n" for ms in late))
            noted.flush()


if __name__ == "__main__":
    for _ in range(int(os.environ.get("WORKERS", "1")) - 1):
        if os.fork() == 0:
            break
    given = int(sys.argv[1]), sys.argv[2].split(",")
    if os.environ.get("LOOP") == "asyncio":
        asyncio.run(serve(*given))
    else:
        import uvloop

        uvloop.run(serve(*given))
