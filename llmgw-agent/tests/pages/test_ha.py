"""docs/ha.md, carried out on two servers, their database, a node, and a router's machine."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from llmgw.testing.machines import Network
from llmgw.testing.pem import write_pair
from llmgw.testing.postgres import run_sql

pytestmark = pytest.mark.slow

#: Leads an address to a socket file: the database runs outside of the machines.
_RELAY = """\
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve(reader, writer):
    theirs, ours = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(pump(reader, ours), pump(theirs, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(serve, "10.0.0.9", 5432) as server:
        print("relay serves", flush=True)
        await server.serve_forever()

asyncio.run(main())
"""
_SERVER = "llmgw server --config /etc/llmgw/llmgw.yaml"
_CATALOG = """\
name: chat
profiles:
  - {engine: llamacpp, weights: "path:/srv/models/chat.gguf"}
"""


@pytest.fixture
def database(postgres_server: str) -> Iterator[Path]:
    """The socket file of a PostgreSQL with a database and an owner of the page's names."""
    run_sql(postgres_server, "CREATE ROLE llmgw LOGIN", "CREATE DATABASE llmgw OWNER llmgw")
    yield Path(str(sa.make_url(postgres_server).query["host"])) / ".s.PGSQL.5432"
    run_sql(postgres_server, "DROP DATABASE llmgw WITH (FORCE)", "DROP ROLE llmgw")


def test_the_page_of_several_servers_works(
    opt: Path,
    network: Callable[..., Network],
    database: Path,
    folder: Path,
    tiny_gguf: bytes,
    page: Any,
    asking: Callable[..., str],
) -> None:
    machines = network()
    first, second, node, edge, holder = (
        machines.machine(name, f"10.0.0.{number}", opt=opt)
        for name, number in (("gw-1", 1), ("gw-2", 2), ("gpu-01", 3), ("edge", 4), ("db", 9))
    )
    holder.write("relay.py", _RELAY)
    holder.start(f"{sys.executable} relay.py {database}", shows="serves")
    pair = write_pair(folder / "pem", addresses=("10.0.0.1", "10.0.0.2"))
    certificate, key = ((pair / name).read_bytes() for name in ("cert.pem", "key.pem"))
    for machine in (first, second, edge):
        machine.write("/etc/hosts", "127.0.0.1 localhost\n10.0.0.9 db.internal\n")
        machine.write("/etc/llmgw/tls.crt", certificate)
        machine.write("/etc/llmgw/tls.key", key, mode=0o600)
        machine.write("/etc/llmgw/ca.crt", certificate)
    node.write("/srv/models/chat.gguf", tiny_gguf)
    node.set(LLMGW_AGENT__WEIGHTS_ROOTS='["/srv/models"]')

    ha = page("docs/ha.md")
    part = "With PostgreSQL"
    ha.do(part, first, first, first)
    second.type(ha.commands[0])
    written = first.type("cat /etc/llmgw/llmgw.yaml")
    swapped = re.sub(r"10\.0\.0\.([12])", lambda at: f"10.0.0.{3 - int(at[1])}", written)
    second.write("/etc/llmgw/llmgw.yaml", swapped)
    for secret in ("cluster.secret", "admin.token"):
        path = f"/etc/llmgw/{secret}"
        assert first.type(f"stat -c %a {path}").strip() == "600"
        for other in (second, edge):
            other.write(path, first.type(f"cat {path}"), mode=0o600)
    ha.do(part, first, first)
    second.start(_SERVER)
    said = ha.do(part, first)
    assert "epoch" in said
    node.write("join.token", first.type("llmgw ctl join-token create"))
    ha.do(part, node)
    first.write("chat.yaml", _CATALOG)
    first.type("llmgw ctl apply chat.yaml")
    ha.do("Routers alone", edge)
    asking(edge, "chat")

    ha.running.pop(_SERVER).interrupt()
    (plugin,) = re.findall(r"```yaml\n(plugins:\n  envoy: .*?)```", ha.text, re.DOTALL)
    first.write("/etc/llmgw/llmgw.yaml", f"{written}{plugin}")
    ha.running[_SERVER] = first.start(_SERVER)
    if (envoy := shutil.which("envoy")) is None:
        ha.skip("Envoy in place of the routers")
    else:
        first.type(f"ln -s {envoy} /opt/llmgw/bin/envoy")
        first.type("until grep --silent chat /var/lib/llmgw/envoy/*.json; do sleep 0.2; done")
        ha.do("Envoy in place of the routers", first)
        asking(first, "chat", "http://10.0.0.1:8000")
    ha.finish()
