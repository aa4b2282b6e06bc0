"""Connections between nodes of one cluster: mutual TLS by the certificates that they have anyway."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from llmgw.domain.ids import NodeId
from llmgw.errors import TransientError
from llmgw_agent.node.identity.keeping import KeptIdentity
from llmgw_agent.wire.certificates import Unidentified, node_named

_CONNECT_S = 5.0


class NotAPeer(Exception):
    """Whoever is at the other end is no node of this cluster, or not the one that was meant."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Opens and answers such connections. All methods block.

    Only the cluster's own authorities are believed, not those of join tokens: who has merely
    been invited gets nothing here.
    """

    kept: KeptIdentity

    def dial(self, address: str, port: int, *, node: NodeId, silence_s: float) -> ssl.SSLSocket:
        """Return a connection to this very node. silence_s: how long a read may wait.

        Raises OSError (TLS included), NotAPeer, or TransientError without a certificate.
        """
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        plain = socket.create_connection((address, port), timeout=_CONNECT_S)
        try:
            connection = context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        try:
            if (found := self._node(connection)) != node:
                raise NotAPeer(f"node {found} answers at {address}, and not {node}")
            connection.settimeout(silence_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def answer(self, plain: socket.socket, *, silence_s: float) -> tuple[ssl.SSLSocket, NodeId]:
        """Return a connection that came in, and the node at its other end.

        silence_s: how long a read or write may wait. Raises as `dial`; the socket is closed then.
        """
        plain.settimeout(_CONNECT_S)
        try:
            connection = self._context(ssl.PROTOCOL_TLS_SERVER).wrap_socket(plain, server_side=True)
        except BaseException:
            plain.close()
            raise
        try:
            node = self._node(connection)
            connection.settimeout(silence_s)
        except BaseException:
            connection.close()
            raise
        return connection, node

    def _node(self, connection: ssl.SSLSocket) -> NodeId:
        shown = connection.getpeercert()
        try:
            if not shown or self.kept.cluster_id is None:
                raise Unidentified("it shows no certificate")
            names: Any = shown.get("subjectAltName", ())  # pairs, which the stubs do not know
            return node_named((name for kind, name in names if kind == "URI"), self.kept.cluster_id)
        except Unidentified as error:
            raise NotAPeer(f"certificate refused: {error}") from None

    def _context(self, side: int) -> ssl.SSLContext:
        pem = self.kept.pem
        if pem is None:
            raise TransientError("this node has no certificate yet")
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # nodes have no host names; `_node` reads their own
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pem.authorities)
        # `ssl` takes keys from files alone: from one that is in memory, so that there is no
        # second copy of the key on the disk.
        file = os.memfd_create("llmgw-identity", os.MFD_CLOEXEC)
        try:
            os.write(file, (pem.key + pem.chain).encode())
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        return context
