"""The router with every feature on, for measuring: `serve.py PORT ENGINE_PORT[,ENGINE_PORT]`.

Keys with a limit, admission, selection over two static endpoints, metrics, usage, access
records. The printed line is the key to send. `LOOP=asyncio` leaves uvloop out, `PROFILE` names
a routing profile.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
import sys
import tempfile
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
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    with tempfile.TemporaryDirectory() as folder:
        served = router(engine_ports, Path(folder))
        config = uvicorn.Config(
            served.asgi,
            http=served.protocol,  # type: ignore[arg-type]  # any callable serves
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(served.run)
            tasks.start_soon(_settle_usage, served)
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


if __name__ == "__main__":
    given = int(sys.argv[1]), sys.argv[2].split(",")
    if os.environ.get("LOOP") == "asyncio":
        asyncio.run(serve(*given))
    else:
        import uvloop

        uvloop.run(serve(*given))
