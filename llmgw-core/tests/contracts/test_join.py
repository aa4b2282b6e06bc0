"""A join token proves itself in a TLS handshake and is never sent."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.contracts.join import JoinToken
from llmgw.contracts.joinproof import derive_join_authority, key_pin, token_id_of
from llmgw.domain.secret import Secret

SECRET = Secret("s" * 43)


def test_both_ends_derive_the_same_key_from_one_secret() -> None:
    here = derive_join_authority("abcd1234", SECRET)
    there = derive_join_authority("abcd1234", Secret("s" * 43))
    other = derive_join_authority("abcd1234", Secret("t" * 43))
    assert key_pin(here.certificate) == key_pin(there.certificate)
    assert key_pin(here.certificate) != key_pin(other.certificate)


def test_a_token_reads_back_as_written() -> None:
    text = f"llmgw1.abcd1234.{'s' * 43}.{'p' * 43}"
    token = JoinToken.parse(f" {text}\n")
    assert (token.id, token.pin) == ("abcd1234", "p" * 43)
    assert token.reveal() == text
    assert "sss" not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "llmgw1", "llmgw2.abcd1234." + "s" * 43 + "." + "p" * 43, "é"]
)
def test_what_is_no_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match="not a join token") as caught:
        JoinToken.parse(text)
    assert not text or text not in str(caught.value).removeprefix("not a join token; ").split()


def test_a_certificate_tells_which_token_it_proves() -> None:
    authority = derive_join_authority("abcd1234", SECRET)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = authority.issue(key.public_key(), "gpu-01" * 20)
    assert token_id_of(certificate) == "abcd1234"


@pytest.mark.parametrize(("trusted", "accepted"), [("s" * 43, True), ("t" * 43, False)])
def test_tls_accepts_exactly_the_certificate_of_a_trusted_token(
    tmp_path: Path, trusted: str, accepted: bool
) -> None:
    authority = derive_join_authority("abcd1234", SECRET)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = authority.issue(key.public_key(), "gpu-01")
    server_authority = derive_join_authority("server00", Secret("x" * 43))

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(
        _pem(tmp_path / "server.pem", server_authority.certificate, server_authority.key)
    )
    server.verify_mode = ssl.CERT_REQUIRED
    known = derive_join_authority("abcd1234", Secret(trusted))
    server.load_verify_locations(cadata=known.certificate_pem.decode())
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.load_cert_chain(_pem(tmp_path / "client.pem", certificate, key))

    if accepted:
        _handshake(client, server)
    else:
        with pytest.raises(ssl.SSLError):
            _handshake(client, server)


def _pem(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_side=False)
    two = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (one, two):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
