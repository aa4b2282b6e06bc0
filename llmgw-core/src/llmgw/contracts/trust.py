"""Who is a node of this cluster: certificates, join tokens, revocation.

Core keeps the keys (in the store, so that any server can sign); whoever carries the node
stream uses this seam. All methods may wait for the store: call them off the event loop.
The token that a first certificate is given for, and its proof: `contracts.join`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmgw.domain.ids import NodeId
from llmgw.domain.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """What a listener for nodes presents, and whom it accepts. All PEM."""

    certificate_chain: bytes  #: leaf, then the CA
    private_key: Secret
    client_roots: bytes
    """CAs in force, the issuing one first, then the join authorities of tokens still valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGrant:
    """What a node gets when it joins or renews."""

    certificate_chain: bytes
    """PEM; subject alternative names `spiffe://<cluster id>/node/<node id>` and, if the node is
    bound to a pool, `spiffe://<cluster id>/pool/<pool>`. Good for both ends of a connection."""
    ca_bundle: bytes  #: PEM of every CA that it should trust, the issuing one first
    cluster_id: str
    pool: str | None  #: that the token binds the node to


class NodeTrust(Protocol):
    """Signs, and says who is still welcome."""

    @property
    def cluster_id(self) -> str: ...

    def server_identity(self) -> ServerIdentity:
        """Return what to present now. Cheap: asked at each handshake."""
        ...

    def join(self, *, token_id: str, csr: bytes, node: NodeId, peer_address: str) -> JoinGrant:
        """Sign the first certificate of a node whose join-token proof has been verified by TLS.

        Raises PermanentError if the token is spent, expired, revoked, local-only and
        `peer_address` (an IP without brackets, or `unix`) is not this machine, or if the node id
        is revoked.
        """
        ...

    def renew(self, *, node: NodeId, csr: bytes, pool: str | None) -> JoinGrant:
        """Sign a fresh certificate for a node that is already known by its certificate.

        pool: that its present certificate binds it to, and the next one will.
        """
        ...

    def revoked(self, node: NodeId) -> str | None:
        """Return why the node is refused; None if it is welcome. From memory, never waits."""
        ...
