"""Makes keys and reads certificates: one question, one answer, in a process of its own.

    python -P -m llmgw_agent.node.minting.work join|renew|facts < question > answer

Question and answer are JSON (`papers`). An error is a sentence on standard output, with an exit
code that says of which kind it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.contracts.joinproof import derive_join_authority, key_pin
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError, TransientError
from llmgw_agent.node.minting.authority import fetch_authority
from llmgw_agent.node.minting.mint import PERMANENT, TRANSIENT, UNREADABLE
from llmgw_agent.node.minting.papers import (
    AskFacts,
    AskJoin,
    AskRenew,
    Facts,
    JoinPapers,
    RenewPapers,
)
from llmgw_agent.wire.addresses import TcpAddress
from llmgw_agent.wire.authorities import authorities_digest

T = TypeVar("T")


def answer(verb: str, question: bytes) -> bytes:
    """Answer one question. Raises TransientError, PermanentError, ValueError as the verbs do."""
    return msgspec.json.encode(_VERBS[verb](question))


def main() -> int:
    """Answer the question on standard input."""
    try:
        said, code = answer(sys.argv[1], sys.stdin.buffer.read()), 0
    except TransientError as error:
        said, code = str(error).encode(), TRANSIENT
    except PermanentError as error:
        said, code = str(error).encode(), PERMANENT
    except ValueError as error:
        said, code = str(error).encode(), UNREADABLE
    sys.stdout.buffer.write(said)
    return code


def _join(ask: AskJoin) -> JoinPapers:
    authority = fetch_authority(TcpAddress(ask.host, ask.port), ask.pin)
    key = new_key()
    issuer = derive_join_authority(ask.token_id, Secret(ask.secret))
    proof = issuer.issue(key.public_key(), ask.node)
    return JoinPapers(
        authority=authority.decode(),
        key=key_pem(key).decode(),
        proof=proof.public_bytes(serialization.Encoding.PEM).decode(),
        request=signing_request(key, ask.node).decode(),
    )


def _renew(ask: AskRenew) -> RenewPapers:
    key = new_key()
    return RenewPapers(key=key_pem(key).decode(), request=signing_request(key, ask.node).decode())


def _facts(ask: AskFacts) -> Facts:
    leaf = x509.load_pem_x509_certificate(ask.chain.encode())
    key = serialization.load_pem_private_key(ask.key.encode(), password=None)
    if key.public_key() != leaf.public_key():
        raise ValueError("the certificate is for another key")
    bundle = ask.authorities.encode()
    return Facts(
        not_before=leaf.not_valid_before_utc.timestamp(),
        not_after=leaf.not_valid_after_utc.timestamp(),
        pins=tuple(key_pin(item) for item in x509.load_pem_x509_certificates(bundle)),
        digest=authorities_digest(bundle),
    )


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def signing_request(key: ec.EllipticCurvePrivateKey, node: str) -> bytes:
    """Return a PEM request. The name in it is for people; the server signs what it has verified."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _reading(kind: type[T], work: Callable[[T], object]) -> Callable[[bytes], object]:
    return lambda question: work(msgspec.json.decode(question, type=kind))


_VERBS = {
    "join": _reading(AskJoin, _join),
    "renew": _reading(AskRenew, _renew),
    "facts": _reading(AskFacts, _facts),
}

if __name__ == "__main__":
    sys.exit(main())
