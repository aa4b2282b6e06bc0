"""Who is at the other end, from the certificate alone: an id inside a message is never trusted."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from llmgw.contracts.joinproof import token_id_of
from llmgw.domain.ids import NodeId
from llmgw_agent.wire.certificates import Unidentified, node_named, pool_named


@dataclass(frozen=True, slots=True)
class Member:
    """A node with a certificate of this cluster."""

    node: NodeId
    pool: str | None = None  #: that its join token bound it to; None: it chooses


@dataclass(frozen=True, slots=True)
class Applicant:
    """Whoever holds a join token; may join, and nothing else."""

    token_id: str


@dataclass(frozen=True, slots=True)
class SameUser:
    """A process of the server's own user, over a socket file that no other can open."""


Identity = Member | Applicant | SameUser


def identify(leaf: bytes, roots: bytes, cluster_id: str) -> Member | Applicant:
    """Read the peer's certificate.

    leaf, roots: PEM. TLS has checked the chain already, but says not by which root: whoever
    holds a join token could otherwise sign a certificate with any node's name in it. Raises
    Unidentified.
    """
    certificate = x509.load_pem_x509_certificate(leaf)
    issuer = next(
        (root for root in x509.load_pem_x509_certificates(roots) if _issued(certificate, root)),
        None,
    )
    if issuer is None:
        raise Unidentified("its issuer is trusted no more")
    if token := token_id_of(certificate):
        return Applicant(token)
    uris = _uris(certificate)
    return Member(node_named(uris, cluster_id), pool_named(uris, cluster_id))


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _issued(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def peer_ip(peer: str) -> str:
    """Return the IP, without brackets, of gRPC's `ipv4:…`, `ipv6:%5B…%5D:…`; else `unix`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return "unix"
    host = unquote(rest).rpartition(":")[0].strip("[]")
    # A dual-stack listener shows IPv4 peers as mapped addresses.
    return host.removeprefix("::ffff:") if "." in host else host
