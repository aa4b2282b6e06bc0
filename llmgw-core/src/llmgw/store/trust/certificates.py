"""X.509 as this cluster uses it: one authority, server certificates, node certificates.

All keys are P-256. Pure apart from the random numbers that keys and serials are made of.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmgw.contracts.join import SERVER_NAME
from llmgw.domain.ids import NodeId
from llmgw.errors import PermanentError

AUTHORITY_DAYS = 3650
LEAF_DAYS = 30
# What two clocks may differ by: a certificate that is not valid yet cuts a machine off whose
# clock is slow, and a time zone taken for UTC is hours of it. Nothing is gained by less.
_SKEW = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority of the cluster, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return pem(self.certificate)


def new_authority(cluster_id: str, wall: float) -> Authority:
    """Return a fresh authority for this cluster. wall: now, in Unix seconds."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities are trusted at once while one replaces the other; a verifier finds the
    # right one by its subject, which therefore differs.
    name = _name(f"llmgw cluster {cluster_id[:8]} {x509.random_serial_number():x}"[:48])
    certificate = (
        _builder(name, name, key.public_key(), wall, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate=certificate, key=key)


def server_certificate(
    authority: Authority, key: ec.EllipticCurvePrivateKey, names: Iterable[str], wall: float
) -> x509.Certificate:
    """Return a server's certificate for `SERVER_NAME` and further host names or addresses."""
    builder = _leaf(authority, SERVER_NAME, key.public_key(), wall)
    return (
        builder.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in (SERVER_NAME, *names)]),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def node_certificate(
    authority: Authority,
    csr_pem: bytes,
    node: NodeId,
    *,
    pool: str | None,
    cluster_id: str,
    wall: float,
) -> x509.Certificate:
    """Sign a node's request. Only its key is taken from it; the identity is ours to say.

    pool: that the node is bound to. Raises PermanentError if it is no request, is not signed by
    its own key, or has another kind of key.
    """
    try:
        csr = x509.load_pem_x509_csr(csr_pem)
        signed = csr.is_signature_valid
    except (ValueError, InvalidSignature):
        raise PermanentError("the certificate request cannot be read") from None
    key = csr.public_key()
    if (
        not signed
        or not isinstance(key, ec.EllipticCurvePublicKey)
        or key.curve.name != "secp256r1"
    ):
        raise PermanentError("the certificate request must be signed by its own P-256 key")
    names = [f"spiffe://{cluster_id}/node/{node}"]
    if pool is not None:
        names.append(f"spiffe://{cluster_id}/pool/{pool}")
    # Nodes also answer each other (weights). None of them can pass for a server: agents ask for
    # the name that only a server's certificate has.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    return (
        _leaf(authority, node, key, wall)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name) for name in names]),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key unencrypted, for sealing or for TLS."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_authority(certificate_pem: bytes, private_pem: bytes) -> Authority:
    """Read back what `pem` and `key_pem` wrote."""
    key = serialization.load_pem_private_key(private_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PermanentError("the cluster's authority has a key that is not P-256")
    return Authority(certificate=x509.load_pem_x509_certificate(certificate_pem), key=key)


def _leaf(
    authority: Authority, common_name: str, key: ec.EllipticCurvePublicKey, wall: float
) -> x509.CertificateBuilder:
    subject = authority.certificate.subject
    return (
        _builder(_name(common_name), subject, key, wall, LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, wall: float, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    # X.520 limits a common name to 64 characters. Nobody reads it: names are alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])
