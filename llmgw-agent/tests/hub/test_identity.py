"""What a certificate proves, and what it does not."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from llmgw.contracts.join import SERVER_NAME, JoinToken
from llmgw.contracts.joinproof import derive_join_authority
from llmgw.domain.ids import NodeId
from llmgw.testing.trust import Authority, InMemoryTrust
from llmgw_agent.hub.identity import Applicant, Member, identify, peer_ip
from llmgw_agent.node.minting.work import new_key
from llmgw_agent.wire.certificates import Unidentified

CLUSTER = "test-cluster"


def _uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


def test_a_certificate_of_the_cluster_names_its_node() -> None:
    trust = InMemoryTrust(CLUSTER)
    leaf = trust.node_certificate(NodeId("gpu-01"), new_key().public_key())
    roots = trust.server_identity().client_roots
    assert identify(leaf, roots, CLUSTER) == Member(NodeId("gpu-01"))


def test_a_certificate_names_the_pool_that_its_node_was_let_into() -> None:
    trust = InMemoryTrust(CLUSTER)
    leaf = trust.node_certificate(NodeId("gpu-01"), new_key().public_key(), "chat")
    roots = trust.server_identity().client_roots
    assert identify(leaf, roots, CLUSTER) == Member(NodeId("gpu-01"), "chat")


def test_a_certificate_under_a_tokens_authority_proves_the_token_alone() -> None:
    trust = InMemoryTrust(CLUSTER)
    token = JoinToken.parse(trust.new_token())
    proof = derive_join_authority(token.id, token.secret).issue(new_key().public_key(), "gpu-01")
    leaf = proof.public_bytes(serialization.Encoding.PEM)
    roots = trust.server_identity().client_roots
    assert identify(leaf, roots, CLUSTER) == Applicant(token.id)


def test_a_certificate_whose_issuer_is_trusted_no_more_proves_nothing() -> None:
    trust = InMemoryTrust(CLUSTER)
    leaf = trust.node_certificate(NodeId("gpu-01"), new_key().public_key())
    with pytest.raises(Unidentified, match="trusted no more"):
        identify(leaf, InMemoryTrust(CLUSTER).server_identity().client_roots, CLUSTER)


@pytest.mark.parametrize(
    "names",
    [
        [],
        [x509.DNSName(SERVER_NAME)],
        [_uri("spiffe://another-cluster/node/gpu-01")],
        [_uri(f"spiffe://{CLUSTER}/server/gpu-01")],
        [_uri(f"spiffe://{CLUSTER}/node/")],
        [_uri(f"spiffe://{CLUSTER}/node/../gpu-01")],
        [_uri(f"spiffe://{CLUSTER}/node/a"), _uri(f"spiffe://{CLUSTER}/node/b")],
        [
            _uri(f"spiffe://{CLUSTER}/node/a"),
            _uri(f"spiffe://{CLUSTER}/pool/a"),
            _uri(f"spiffe://{CLUSTER}/pool/b"),
        ],
        [_uri(f"spiffe://{CLUSTER}/node/a"), _uri(f"spiffe://{CLUSTER}/pool/../a")],
    ],
)
def test_a_certificate_that_names_no_single_node_proves_nothing(
    names: list[x509.GeneralName],
) -> None:
    authority = Authority()
    leaf = authority.sign(new_key().public_key(), *names)
    with pytest.raises(Unidentified, match="names no single"):
        identify(leaf, authority.pem, CLUSTER)


@pytest.mark.parametrize(
    ("peer", "ip"),
    [
        ("ipv4:10.0.0.5:4711", "10.0.0.5"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[fd00::5]:4711", "fd00::5"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1%eth0"),
        ("ipv6:%5B::ffff:127.0.0.1%5D:4711", "127.0.0.1"),
        ("unix:/run/agents.sock", "unix"),
        ("unix:", "unix"),
    ],
)
def test_the_peers_address_is_read_as_an_ip_without_brackets(peer: str, ip: str) -> None:
    assert peer_ip(peer) == ip
