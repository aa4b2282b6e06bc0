"""A certificate authority in memory: real signatures, no store."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmgw.contracts.join import SERVER_NAME, JoinToken
from llmgw.contracts.joinproof import derive_join_authority, key_pin
from llmgw.contracts.trust import JoinGrant, ServerIdentity
from llmgw.domain.ids import NodeId
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError

_DAY = datetime.timedelta(days=1)


class Authority:
    """One CA: a key and its self-signed certificate."""

    def __init__(self, *, scalar: int | None = None) -> None:
        """scalar: the private key, for authorities that several processes must share."""
        self.key = (
            ec.generate_private_key(ec.SECP256R1())
            if scalar is None
            else ec.derive_private_key(scalar, ec.SECP256R1())
        )
        # Verifiers find an issuer by its name: two that are trusted at once need different ones.
        name = f"llmgw test {secrets.token_hex(4) if scalar is None else scalar}"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self.key.public_key()
        self.certificate = (
            _builder(subject, subject, public, days=3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def sign(
        self,
        public: ec.EllipticCurvePublicKey,
        *names: x509.GeneralName,
        days: float = 30,
        age_days: float = 0,
    ) -> bytes:
        """Return the PEM of a leaf that is valid for `days` and was issued `age_days` ago."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llmgw")])
        leaf = (
            _builder(subject, self.certificate.subject, public, days=days, age_days=age_days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return leaf.public_bytes(serialization.Encoding.PEM)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


class InMemoryTrust:
    """Implements `contracts.trust.NodeTrust`."""

    def __init__(
        self, cluster_id: str = "test-cluster", *, authority: Authority | None = None
    ) -> None:
        self._cluster_id = cluster_id
        #: the one that signs first, all are trusted
        self.authorities = [authority or Authority()]
        self._tokens: dict[str, JoinToken] = {}
        self._local_only: set[str] = set()
        self._reusable: set[str] = set()
        self._revoked: dict[NodeId, str] = {}
        self.pool: str | None = None  #: that join tokens bind nodes to
        self.grant_days: float = 30
        self.grant_age_days: float = 0
        self.joined: list[tuple[NodeId, str]] = []  #: node and peer address, in order
        self.renewed: list[NodeId] = []
        self._one_at_a_time = threading.Lock()
        self._change()

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def new_token(self, *, local_only: bool = False, reusable: bool = False) -> str:
        """Return a token's text."""
        token = JoinToken(
            id=secrets.token_hex(4),
            secret=Secret(secrets.token_urlsafe(32)),
            pin=key_pin(self.authorities[0].certificate),
        )
        self._tokens[token.id] = token
        if local_only:
            self._local_only.add(token.id)
        if reusable:
            self._reusable.add(token.id)
        self._change()
        return token.reveal()

    def revoke(self, node: NodeId, reason: str) -> None:
        self._revoked[node] = reason

    def rotate_server_certificate(self) -> None:
        """Present a new leaf from now on."""
        self._change()

    def add_authority(self) -> None:
        """First step of a CA change: sign by a new one, go on trusting the old."""
        self.authorities.insert(0, Authority())
        self._change()

    def drop_authority(self) -> None:
        """Last step of a CA change: trust the old one no more."""
        self.authorities.pop()
        self._change()

    def node_certificate(
        self, node: NodeId, public: ec.EllipticCurvePublicKey, pool: str | None = None
    ) -> bytes:
        """Return the leaf of a node, PEM."""
        names = [f"spiffe://{self._cluster_id}/node/{node}"]
        if pool is not None:
            names.append(f"spiffe://{self._cluster_id}/pool/{pool}")
        return self.authorities[0].sign(
            public,
            *map(x509.UniformResourceIdentifier, names),
            days=self.grant_days,
            age_days=self.grant_age_days,
        )

    def server_identity(self) -> ServerIdentity:
        return self._present

    def join(self, *, token_id: str, csr: bytes, node: NodeId, peer_address: str) -> JoinGrant:
        if token_id not in self._tokens:
            raise PermanentError("the join token is spent, expired or unknown; make a new one")
        if token_id in self._local_only and not _is_local(peer_address):
            raise PermanentError(f"this join token is for its own machine, not {peer_address}")
        grant = self._grant(node, csr, self.pool)
        if token_id not in self._reusable:
            del self._tokens[token_id]
            self._change()
        self.joined.append((node, peer_address))
        return grant

    def renew(self, *, node: NodeId, csr: bytes, pool: str | None) -> JoinGrant:
        grant = self._grant(node, csr, pool)
        self.renewed.append(node)
        return grant

    def revoked(self, node: NodeId) -> str | None:
        return self._revoked.get(node)

    def _grant(self, node: NodeId, csr: bytes, pool: str | None) -> JoinGrant:
        if reason := self.revoked(node):
            raise PermanentError(f"node {node} is revoked: {reason}")
        request = x509.load_pem_x509_csr(csr)
        public = request.public_key()
        if not request.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
            raise PermanentError("the signing request is not signed by its own P-256 key")
        return JoinGrant(
            certificate_chain=self.node_certificate(node, public, pool) + self.authorities[0].pem,
            ca_bundle=b"".join(authority.pem for authority in self.authorities),
            cluster_id=self._cluster_id,
            pool=pool,
        )

    def _change(self) -> None:
        # Nodes join on threads of the server's, while a test makes tokens for others.
        with self._one_at_a_time:
            self._present = self._make_identity()

    def _make_identity(self) -> ServerIdentity:
        key = ec.generate_private_key(ec.SECP256R1())
        signer = self.authorities[-1]  # whom every agent trusts already
        joins = [
            derive_join_authority(token.id, token.secret) for token in tuple(self._tokens.values())
        ]
        return ServerIdentity(
            certificate_chain=signer.sign(key.public_key(), x509.DNSName(SERVER_NAME)) + signer.pem,
            private_key=Secret(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ).decode()
            ),
            client_roots=b"".join(
                [
                    *(item.pem for item in self.authorities),
                    *(item.certificate_pem for item in joins),
                ]
            ),
        )


def _is_local(address: str) -> bool:
    return address == "unix" or ipaddress.ip_address(address).is_loopback


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    *,
    days: float,
    age_days: float = 0,
) -> x509.CertificateBuilder:
    issued = datetime.datetime.now(datetime.UTC) - age_days * _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(issued - datetime.timedelta(minutes=5))
        .not_valid_after(issued + days * _DAY)
    )
