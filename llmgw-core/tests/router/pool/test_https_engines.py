"""Engines behind TLS: certificates are checked against the machine's roots."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmgw.router.pool.pool import client_context
from llmgw.testing.engine_script import Script, ScriptedEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """Return a self-signed certificate for 127.0.0.1 and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "engine.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return path, context


async def test_a_trusted_engine_is_asked_over_tls(
    start_router: Any, certificate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, context = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    client_context.cache_clear()
    async with ScriptedEngine(Script.plain({"ok": 1}), tls=context) as engine:
        router = await start_router(engine.url)
        answers = [await router.chat() for _ in range(3)]
    client_context.cache_clear()
    assert {answer.status for answer in answers} == {200}
    assert engine.connections == 1


async def test_an_engine_that_nobody_vouches_for_is_not_asked(
    start_router: Any, certificate: Any
) -> None:
    client_context.cache_clear()
    async with ScriptedEngine(Script.plain({"ok": 1}), tls=certificate[1]) as engine:
        router = await start_router(engine.url)
        answer = await router.chat()
    assert answer.status == 502
    assert answer.error()["code"] == "engine_unreachable"
    assert not engine.requests
