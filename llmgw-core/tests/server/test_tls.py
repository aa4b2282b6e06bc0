"""TLS of the HTTP listeners: modern only, followed on disk, and its mistakes named."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from llmgw.config.server import TlsSettings
from llmgw.errors import ConfigError
from llmgw.server.tls import Certificate, certificate_of
from llmgw.testing.cluster import running_server
from llmgw.testing.engine_script import ScriptedEngine
from llmgw.testing.pem import write_pair


@pytest.mark.anyio
async def test_both_listeners_speak_tls_and_nothing_older_than_1_2(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair")
    trust = ssl.create_default_context(cafile=pair / "cert.pem")
    tls = {"certificate": str(pair / "cert.pem"), "key": str(pair / "key.pem")}
    async with ScriptedEngine() as engine:
        endpoint = {"id": "e1", "url": engine.url, "models": ["m"], "health_path": None}
        async with (
            running_server(tmp_path / "state", endpoints=[endpoint], tls=tls) as server,
            httpx.AsyncClient(verify=trust, trust_env=False) as client,
        ):
            for address in (server.serving.api, server.serving.admin):
                answer = await client.get(f"https://localhost:{address.port}/healthz")
                assert answer.status_code == 200
    certificate = Certificate(pair / "cert.pem", pair / "key.pem")
    assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_renewed_certificate_is_taken_over_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pair(tmp_path)
    certificate = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    caplog.set_level("INFO")
    certificate.look()
    assert caplog.messages == []
    write_pair(tmp_path)
    certificate.look()
    (tmp_path / "key.pem").write_text("no key")
    certificate.look()
    certificate.look()
    assert caplog.messages == ["certificate renewed", "certificate not renewed"]


def test_files_that_do_not_belong_together_or_hold_something_else_are_named(
    tmp_path: Path,
) -> None:
    one, other = write_pair(tmp_path / "one"), write_pair(tmp_path / "other")
    locked = write_pair(tmp_path / "locked", password=b"secret")
    (tmp_path / "text").write_text("hello")
    for chain, key, said in (
        (one / "cert.pem", other / "key.pem", "is not the key of"),
        (tmp_path / "text", one / "key.pem", "holds no certificate in PEM"),
        (locked / "cert.pem", locked / "key.pem", "is encrypted"),
        (tmp_path / "absent", one / "key.pem", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            Certificate(chain, key)


def test_without_tls_there_is_no_certificate() -> None:
    assert certificate_of(TlsSettings()) is None


@pytest.mark.anyio
async def test_a_client_that_is_slow_with_its_handshake_is_cut_at_the_limit_of_a_head(
    tmp_path: Path,
) -> None:
    pair = write_pair(tmp_path / "pair")
    tls = {"certificate": str(pair / "cert.pem"), "key": str(pair / "key.pem")}
    router = {"deadlines": {"request_head": 0.3}}
    endpoint = {"id": "e1", "url": "http://127.0.0.1:9", "models": ["m"], "health_path": None}
    async with running_server(
        tmp_path / "state", endpoints=[endpoint], tls=tls, router=router
    ) as server:
        for address in (server.serving.api, server.serving.admin):
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00")  # the start of a hello
            async with asyncio.timeout(5):
                try:
                    assert await reader.read(1) == b""
                except ConnectionResetError:
                    pass
            writer.close()
