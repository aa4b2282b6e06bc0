"""What a certificate of this cluster says, besides that its authority has signed it."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.domain.ids import NodeId, safe_name_problem


class Unidentified(Exception):
    """The certificate proves nothing to this cluster; the message says why."""


def node_named(uris: Iterable[str], cluster_id: str) -> NodeId:
    """Return the one node that a certificate names by its URIs. Raises Unidentified."""
    nodes = _names(uris, f"spiffe://{cluster_id}/node/")
    if len(nodes) != 1 or safe_name_problem(nodes[0]):
        raise Unidentified("it names no single node of this cluster")
    return NodeId(nodes[0])


def pool_named(uris: Iterable[str], cluster_id: str) -> str | None:
    """Return the pool that the node was bound to when it joined; None: it chooses.

    Raises Unidentified if the certificate names several, or one that cannot be.
    """
    pools = _names(uris, f"spiffe://{cluster_id}/pool/")
    if len(pools) > 1 or any(map(safe_name_problem, pools)):
        raise Unidentified("it names no single pool of this cluster")
    return pools[0] if pools else None


def _names(uris: Iterable[str], prefix: str) -> list[str]:
    return [uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)]
