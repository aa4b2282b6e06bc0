"""A server, a server with TLS and a stand-alone router, before an engine that remembers all it got."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from llmgw.testing import echo_engine
from llmgw.testing.engine_script import Script, ScriptedEngine
from llmgw.testing.site import Running, Site, free_port, wait_for


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="of the malformed requests")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    chosen: int = request.config.getoption("--seed")
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where to send, and which process has to stand it."""

    name: str
    port: int
    running: Running
    tls: ssl.SSLContext | None = None

    @property
    def memory_kib(self) -> int:
        """Proportional set size of the process."""
        rollup = Path(f"/proc/{self.running.process.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:")

    @property
    def cpu_s(self) -> float:
        """Processor seconds that the process has used."""
        stat = Path(f"/proc/{self.running.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, limit=2**22)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """All listeners, the key that opens them, and the engine behind."""

    engine: ScriptedEngine
    key: str
    listeners: dict[str, Listener]


def answer(request: Any) -> Script:
    """A stream where one was asked for, else a plain answer."""
    if b'"stream": true' in request.body or b'"stream":true' in request.body:
        return Script.events('{"choices": [{"index": 0, "delta": {"content": "x"}}]}')
    return Script.plain({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.fixture
def deadlines() -> dict[str, float]:
    """Short, so that what is left half-sent is cut within the test."""
    return {
        "request_head": 1.0,
        "request_body_idle": 1.0,
        "client_stalled": 3.0,
        "keep_alive": 1.0,
    }


@pytest.fixture
async def target(tmp_path: Path, deadlines: dict[str, float]) -> AsyncIterator[Target]:
    (tmp_path / "plain").mkdir()
    (tmp_path / "tls").mkdir()
    plain, secure = Site(tmp_path / "plain"), Site(tmp_path / "tls")
    async with ScriptedEngine(choose=answer) as engine:
        try:
            yield await _start(engine, plain, secure, {"deadlines": deadlines})
        finally:
            await asyncio.to_thread(secure.close)
            await asyncio.to_thread(plain.close)


async def _start(
    engine: ScriptedEngine, plain: Site, secure: Site, settings: dict[str, Any]
) -> Target:
    server = _server(plain, engine.url, {"router": settings, "auth": {"api_keys": "on"}})
    tls_server = _server(
        secure, engine.url, {"router": settings, "tls": write_certificate(secure.home)}
    )
    key = await asyncio.to_thread(wait_for, "a key can be made", lambda: _new_key(plain))
    api, admin = free_port(), free_port()
    router = plain.start(
        *("router", "--server", f"http://127.0.0.1:{plain.admin_port}"),
        *("--config", str(_config(plain.home / "router.yaml", {"router": settings}))),
        *("--token-file", str(plain.state_dir / "admin.token")),
        *("--state-dir", str(plain.home / "router")),
        *("--listen", f"127.0.0.1:{api}", "--admin-listen", f"127.0.0.1:{admin}"),
    )
    listeners = [
        Listener(name="api", port=plain.api_port, running=server),
        Listener(name="admin", port=plain.admin_port, running=server),
        Listener(name="router", port=api, running=router),
        Listener(name="router admin", port=admin, running=router),
        Listener(name="tls", port=secure.api_port, running=tls_server, tls=_trust(secure.home)),
    ]
    for listener in listeners:
        await asyncio.to_thread(wait_for, f"{listener.name} listens", partial(_listens, listener))
    return Target(engine=engine, key=key, listeners={item.name: item for item in listeners})


@pytest.fixture
def busy_site(tmp_path: Path, deadlines: dict[str, float]) -> Iterator[tuple[Listener, str]]:
    """A server before an engine in a process of its own, which costs the test's nothing."""
    site, port = Site(tmp_path), free_port()
    program = [sys.executable, echo_engine.__file__, "--port", str(port), "--interval", "0.01"]
    engine = subprocess.Popen(program)
    try:
        settings = {"router": {"deadlines": deadlines}, "auth": {"api_keys": "on"}}
        running = _server(site, f"http://127.0.0.1:{port}", settings)
        key = wait_for("a key can be made", lambda: _new_key(site))
        yield Listener(name="api", port=site.api_port, running=running), key
    finally:
        site.close()
        engine.kill()
        engine.wait()


def _server(site: Site, engine_url: str, more: dict[str, Any]) -> Running:
    endpoint = {"id": "e1", "url": engine_url, "models": ["demo"], "health_path": None}
    config = _config(site.home / "llmgw.yaml", {"endpoints": [endpoint], **more})
    return site.start(
        *("server", "--config", str(config)),
        *("--listen", f"127.0.0.1:{site.api_port}"),
        *("--admin-listen", f"127.0.0.1:{site.admin_port}"),
        *("--agent-listen", f"127.0.0.1:{site.agent_port}"),
    )


def _config(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def _new_key(site: Site) -> str | None:
    server = f"http://127.0.0.1:{site.admin_port}"
    done = site.run("ctl", "--server", server, "keys", "create", "hostile")
    return done.stdout.strip() if done.returncode == 0 else None


def _listens(listener: Listener) -> bool:
    try:
        socket.create_connection(("127.0.0.1", listener.port), timeout=1).close()
    except OSError:
        return False
    return True


def write_certificate(folder: Path) -> dict[str, str]:
    """Write a pair for localhost and return the `tls` section that names it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    paths = {"certificate": folder / "cert.pem", "key": folder / "key.pem"}
    paths["certificate"].write_bytes(certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    paths["key"].write_bytes(private)
    return {name: str(path) for name, path in paths.items()}


def _trust(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    context.check_hostname = False
    return context
