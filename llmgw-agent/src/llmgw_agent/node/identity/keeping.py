"""The node's key and certificate, in one file that is whole or absent."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.contracts.join import key_pin
from llmgw.domain.ids import NodeId
from llmgw.errors import ConfigError, Problem
from llmgw_agent.node.durable import write_atomically
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.authorities import authorities_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    key: str = ""
    certificate_chain: str = ""
    ca_bundle: str = ""
    cluster_id: str = ""
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityPem:
    """What proves this node, and whom it believes. All PEM."""

    key: str = field(repr=False)
    chain: str
    authorities: str


class KeptIdentity:
    """`identity.json`, 0600: key and certificate can never disagree, whenever the power goes."""

    def __init__(self, path: Path) -> None:
        """Read `path`, which need not exist. Raises ConfigError if it is not what we wrote."""
        self._path = path
        try:
            self._document = msgspec.json.decode(path.read_bytes(), type=_Document)
            self._leaf = _leaf(self._document)
        except FileNotFoundError:
            self._document = _Document()
            self._leaf = None
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(
                str(path),
                [
                    Problem(
                        path="",
                        message=f"cannot be read: {error}; remove it and start the agent with "
                        "--join to join anew, engines keep running",
                    )
                ],
            ) from error

    @property
    def pool(self) -> str | None:
        """The pool that the join token bound this node to; None: it chooses."""
        return self._document.pool

    @property
    def cluster_id(self) -> str | None:
        """The cluster that signed the certificate; None: there is none, or it was forgotten."""
        return self._document.cluster_id or None

    @property
    def pins(self) -> frozenset[str]:
        """`key_pin` of every authority that this node believes."""
        bundle = self._document.ca_bundle.encode()
        if not bundle:
            return frozenset()
        return frozenset(key_pin(item) for item in x509.load_pem_x509_certificates(bundle))

    @property
    def authorities(self) -> str:
        """`authorities_digest` of those that this node believes; "": it has no certificate."""
        return authorities_digest(self._document.ca_bundle.encode())

    def is_usable(self, wall: float) -> bool:
        """Whether there is a certificate, and it has not run out. wall: Unix seconds."""
        return self._leaf is not None and wall < self._leaf.not_valid_after_utc.timestamp()

    def is_due(self, wall: float) -> bool:
        """Whether a third of the certificate's life is over: 10 days of 30."""
        if self._leaf is None:
            return False
        start = self._leaf.not_valid_before_utc.timestamp()
        return wall >= start + (self._leaf.not_valid_after_utc.timestamp() - start) / 3

    @property
    def expired_on(self) -> datetime.date | None:
        """The day on which the certificate runs, or ran, out."""
        return self._leaf.not_valid_after_utc.date() if self._leaf else None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return what proves this node to a server, and says which servers to believe."""
        document = self._document
        return grpc.ssl_channel_credentials(
            root_certificates=document.ca_bundle.encode(),
            private_key=document.key.encode(),
            certificate_chain=document.certificate_chain.encode(),
        )

    @property
    def pem(self) -> IdentityPem | None:
        """What other nodes are shown; None: there is no certificate."""
        document = self._document
        if self._leaf is None:
            return None
        return IdentityPem(
            key=document.key, chain=document.certificate_chain, authorities=document.ca_bundle
        )

    def take(self, key: ec.EllipticCurvePrivateKey, grant: pb.CertificateGrant) -> None:
        """Keep a new key with its certificate. Raises DiskFull with nothing changed."""
        document = _Document(
            key=key_pem(key).decode(),
            certificate_chain=grant.certificate_chain.decode(),
            ca_bundle=grant.ca_bundle.decode(),
            cluster_id=grant.cluster_id,
            # A renewal says nothing about the pool: the token did, once.
            pool=grant.pool if grant.HasField("pool") else self._document.pool,
        )
        leaf = _leaf(document)
        if leaf is None or leaf.public_key() != key.public_key():
            raise ValueError("the certificate is for another key")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._path, msgspec.json.encode(document))
        self._document, self._leaf = document, leaf

    def forget(self) -> None:
        """Drop the certificate (`--rejoin`); the file stays until the next one is there."""
        self._document, self._leaf = _Document(), None


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def signing_request(key: ec.EllipticCurvePrivateKey, node: NodeId) -> bytes:
    """Return a PEM request. The name in it is for people; the server signs what it has verified."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _leaf(document: _Document) -> x509.Certificate | None:
    if not document.certificate_chain:
        return None
    return x509.load_pem_x509_certificate(document.certificate_chain.encode())
