"""The authority that both ends derive from a join token's secret.

The server and the agent derive the same P-256 key, the *join authority*. The server trusts that
authority while the token is valid; the agent signs a client certificate with it, so that the TLS
handshake itself proves the token, on the same listener as every other connection. The pin lets
the agent check the server before that.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmgw.domain.secret import Secret

_ISSUER = re.compile(r"llmgw-join-([A-Za-z0-9]{4,32})")

# Order of P-256 (SEC 2, section 2.4.2). 48 bytes reduced modulo n - 1 are uniform to 2^-128.
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_DERIVED_BYTES = 48

# The server ends a token by no longer trusting its authority; the dates are only a formality,
# and fixed, because the clocks of two machines that have never met may differ.
_NOT_BEFORE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2099, 12, 31, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAuthority:
    """A certificate authority that exists only to prove knowledge of one token's secret."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate  #: self-signed; common name `llmgw-join-<token id>`

    @property
    def certificate_pem(self) -> bytes:
        """Return what a server keeps and trusts. Holds nothing secret."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, public_key: ec.EllipticCurvePublicKey, node: str) -> x509.Certificate:
        """Return the client certificate that a node shows when it joins.

        Its issuer's common name tells the server which token is meant (`token_id_of`).
        """
        return (
            _certificate(_name(node), self.certificate.subject, public_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )


def derive_join_authority(token_id: str, secret: Secret) -> JoinAuthority:
    """Return the authority of a token: the same key on every machine, for the same secret."""
    derived = HKDF(
        algorithm=hashes.SHA256(), length=_DERIVED_BYTES, salt=None, info=b"llmgw join authority v1"
    ).derive(secret.reveal().encode())
    scalar = int.from_bytes(derived, "big") % (_P256_ORDER - 1) + 1
    key = ec.derive_private_key(scalar, ec.SECP256R1())
    name = _name(f"llmgw-join-{token_id}")
    certificate = (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return JoinAuthority(key=key, certificate=certificate)


def token_id_of(certificate: x509.Certificate) -> str | None:
    """Return the id of the token that a client certificate proves; None if it is no such one."""
    names = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    match = _ISSUER.fullmatch(str(names[0].value)) if names else None
    return match[1] if match else None


def key_pin(certificate: x509.Certificate) -> str:
    """Return the base64url SHA-256 of a certificate's SubjectPublicKeyInfo, without padding."""
    info = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.urlsafe_b64encode(hashlib.sha256(info).digest()).rstrip(b"=").decode()


def _name(text: str) -> x509.Name:
    # X.520 limits a common name to 64 characters; a node's id may be longer, and is not taken
    # from here: the server reads it from the request and signs it into the real certificate.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
    )
