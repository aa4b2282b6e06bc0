"""What a certificate of this cluster says, besides that its authority has signed it."""

from __future__ import annotations

from cryptography import x509

from llmgw.domain.ids import NodeId, safe_name_problem


class Unidentified(Exception):
    """The certificate proves nothing to this cluster; the message says why."""


def node_named(certificate: x509.Certificate, cluster_id: str) -> NodeId:
    """Return the one node that a certificate names. Raises Unidentified."""
    nodes = _names(certificate, f"spiffe://{cluster_id}/node/")
    if len(nodes) != 1 or safe_name_problem(nodes[0]):
        raise Unidentified("it names no single node of this cluster")
    return NodeId(nodes[0])


def pool_named(certificate: x509.Certificate, cluster_id: str) -> str | None:
    """Return the pool that the node was bound to when it joined; None: it chooses.

    Raises Unidentified if the certificate names several, or one that cannot be.
    """
    pools = _names(certificate, f"spiffe://{cluster_id}/pool/")
    if len(pools) > 1 or any(map(safe_name_problem, pools)):
        raise Unidentified("it names no single pool of this cluster")
    return pools[0] if pools else None


def _names(certificate: x509.Certificate, prefix: str) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)]
