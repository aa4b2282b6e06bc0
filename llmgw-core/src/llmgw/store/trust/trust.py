"""`contracts.trust.NodeTrust` over the store."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.clock import Clock
from llmgw.contracts.join import JoinToken
from llmgw.contracts.joinproof import key_pin
from llmgw.contracts.trust import JoinGrant, ServerIdentity
from llmgw.domain.ids import NodeId, safe_name_problem
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError
from llmgw.store.database import Database
from llmgw.store.schema import revoked_nodes
from llmgw.store.trust.authorities import Authorities, AuthorityRepository
from llmgw.store.trust.certificates import (
    LEAF_DAYS,
    key_pem,
    node_certificate,
    pem,
    server_certificate,
)
from llmgw.store.trust.joining import DEFAULT_LIFETIME_S, JoinTokenRecord, JoinTokenRepository
from llmgw.store.trust.sealing import write_secret

# Well before its end, so that a server that is away for a week comes back with a valid one.
_RENEW_SERVER_AFTER_S = LEAF_DAYS * 86_400 / 3

UNIX = "unix"
"""Peer address of a connection over a UNIX socket."""


class StoreTrust:
    """Signs with the authority from the store; answers from memory where it is asked often.

    Other servers of the cluster make tokens and revoke nodes too: `refresh` reads what they did.
    """

    def __init__(
        self,
        database: Database,
        authorities: AuthorityRepository,
        tokens: JoinTokenRepository,
        clock: Clock,
        *,
        cluster_id: str,
        names: Sequence[str],
    ) -> None:
        self._database = database
        self._authorities = authorities
        self._tokens = tokens
        self._clock = clock
        self._cluster_id = cluster_id
        self._names = tuple(names)
        self._in_force: Authorities | None = None
        self._known_tokens: tuple[JoinTokenRecord, ...] = ()
        self._revoked: Mapping[NodeId, str] = {}
        self._server_key = ec.generate_private_key(ec.SECP256R1())
        self._server_chain: tuple[Authorities, float, bytes] | None = None
        self.refresh()

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def pin(self) -> str:
        """Return what agents check the issuing authority by."""
        return key_pin(self._authority.issuing.certificate)

    @property
    def trusted_pins(self) -> tuple[str, ...]:
        """Return the pins of all authorities in force, the issuing one first."""
        return tuple(key_pin(authority.certificate) for authority in self._authority.trusted)

    def refresh(self) -> None:
        """Read authorities, tokens and revocations again."""
        self._in_force = self._authorities.load()
        self._known_tokens = self._tokens.list()
        self._revoked = self._database.read(
            lambda connection: {
                NodeId(row.node): row.reason for row in connection.execute(sa.select(revoked_nodes))
            }
        )

    def server_identity(self) -> ServerIdentity:
        """Return what to present now. From memory; a new leaf is signed every ten days."""
        wall = self._clock.wall()
        joining = b"".join(token.authority for token in self._known_tokens if token.usable(wall))
        return ServerIdentity(
            certificate_chain=self._chain(wall),
            private_key=Secret(key_pem(self._server_key).decode()),
            client_roots=self._authority.bundle + joining,
        )

    def join(self, *, token_id: str, csr: bytes, node: NodeId, peer_address: str) -> JoinGrant:
        """Sign the first certificate of a node whose proof of the token TLS has verified."""
        self._refuse_revoked(node)
        known = next((token for token in self._known_tokens if token.id == token_id), None)
        if known is not None and known.local_only and not is_this_machine(peer_address):
            raise PermanentError(
                f"the local join token is good on the server's own machine only, not from "
                f"{peer_address}; make one with `llmgw ctl join-token create`"
            )
        # Tried before the token is spent: a request that cannot be read must not use it up.
        self._sign(node, csr, None)
        spent = self._tokens.spend(token_id)
        self._known_tokens = self._tokens.list()
        return self._grant(self._sign(node, csr, spent.pool), spent.pool)

    def renew(self, *, node: NodeId, csr: bytes, pool: str | None) -> JoinGrant:
        """Sign a fresh certificate for a node that is already known by its certificate."""
        self._refuse_revoked(node)
        return self._grant(self._sign(node, csr, pool), pool)

    def revoked(self, node: NodeId) -> str | None:
        """Return why the node is refused; None if it is welcome. From memory, never waits."""
        return self._revoked.get(node)

    def revoke(self, node: NodeId, reason: str) -> None:
        """Refuse a node from now on, whatever certificate it has."""

        def work(connection: sa.Connection) -> None:
            connection.execute(revoked_nodes.delete().where(revoked_nodes.c.node == node))
            connection.execute(
                revoked_nodes.insert().values(node=node, reason=reason, at=self._clock.wall())
            )

        self._database.write(work)
        self._revoked = {**self._revoked, node: reason}

    def readmit(self, node: NodeId) -> None:
        """Take a revocation back."""
        self._database.write(
            lambda connection: connection.execute(
                revoked_nodes.delete().where(revoked_nodes.c.node == node)
            )
        )
        self._revoked = {name: why for name, why in self._revoked.items() if name != node}

    def create_token(
        self,
        *,
        who: str,
        pool: str | None = None,
        uses: int | None = 1,
        lifetime_s: float | None = DEFAULT_LIFETIME_S,
    ) -> tuple[JoinTokenRecord, JoinToken]:
        """Make a join token; its text is never seen again."""
        made = self._tokens.create(
            pin=self.pin, who=who, pool=pool, uses=uses, lifetime_s=lifetime_s
        )
        self._known_tokens = self._tokens.list()
        return made

    def tokens(self) -> tuple[JoinTokenRecord, ...]:
        """Return all join tokens, spent and revoked ones too."""
        self._known_tokens = self._tokens.list()
        return self._known_tokens

    def revoke_token(self, token_id: str) -> None:
        """End a join token. Nodes that joined with it stay."""
        self._tokens.revoke(token_id)
        self._known_tokens = self._tokens.list()

    def write_local_token(self, path: Path) -> None:
        """Keep a reusable token for agents of this user on this machine in `path`, 0600.

        One that is still good is kept, so that agents may hold on to it across restarts.
        """
        # Of several servers on one store, each has a token of its own, on a machine of its own.
        owner = f"{socket.gethostname()}:{path}"
        for record in self.tokens():
            is_ours = record.local_only and record.created_by == owner
            if is_ours and record.usable(self._clock.wall()):
                if self._is_in(path, record):
                    return
                # Its text is lost, so nobody can use it any more; nor should anybody.
                self._tokens.revoke(record.id)
        _, token = self._tokens.create(
            pin=self.pin, who=owner, uses=None, lifetime_s=None, local_only=True
        )
        write_secret(path, Secret(token.reveal()))
        self._known_tokens = self._tokens.list()

    def begin_rotation(self) -> None:
        """Step 1 of 3 of a change of authority: trust both."""
        self._in_force = self._authorities.begin_rotation()

    def switch_authority(self) -> None:
        """Step 2, and its own way back: the other authority issues."""
        self._in_force = self._authorities.switch()

    def finish_rotation(self) -> None:
        """Step 3: the old authority is no longer trusted."""
        self._in_force = self._authorities.finish_rotation()

    @property
    def _authority(self) -> Authorities:
        if self._in_force is None:  # `refresh` in the constructor has set it
            raise PermanentError("the cluster has no certificate authority")
        return self._in_force

    def _chain(self, wall: float) -> bytes:
        made = self._server_chain
        if (
            made is None
            or made[0] is not self._authority
            or not made[1] <= wall < (made[1] + _RENEW_SERVER_AFTER_S)
        ):
            issuing = self._authority.issuing
            leaf = server_certificate(issuing, self._server_key, self._names, wall)
            made = (self._authority, wall, pem(leaf) + issuing.certificate_pem)
            self._server_chain = made
        return made[2]

    def _sign(self, node: NodeId, csr: bytes, pool: str | None) -> bytes:
        if problem := safe_name_problem(node):
            raise PermanentError(f"the node id {problem}")
        issuing = self._authority.issuing
        leaf = node_certificate(
            issuing, csr, node, pool=pool, cluster_id=self._cluster_id, wall=self._clock.wall()
        )
        return pem(leaf) + issuing.certificate_pem

    def _grant(self, chain: bytes, pool: str | None) -> JoinGrant:
        return JoinGrant(
            certificate_chain=chain,
            ca_bundle=self._authority.bundle,
            cluster_id=self._cluster_id,
            pool=pool,
        )

    def _refuse_revoked(self, node: NodeId) -> None:
        if reason := self.revoked(node):
            raise PermanentError(f"the node {node} was revoked: {reason}")

    def _is_in(self, path: Path, record: JoinTokenRecord) -> bool:
        try:
            token = JoinToken.parse(path.read_text())
        except (OSError, ValueError):
            return False
        return token.id == record.id and token.pin == self.pin


def is_this_machine(address: str) -> bool:
    """Say whether a peer's IP address is one of this machine's own, or a UNIX socket."""
    if address == UNIX:
        return True
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return True
    if ip.is_unspecified or ip.is_multicast:
        return False
    # The kernel lets us bind exactly to our own addresses, whatever the interfaces are called.
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(ip), 0))
        except OSError:
            return False
    return True
