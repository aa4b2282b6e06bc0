"""Keys and certificates come from a process of their own, and so does what they say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from llmgw.contracts.join import JoinToken
from llmgw.domain.ids import NodeId
from llmgw.errors import ConfigError, TransientError
from llmgw.testing.site import free_port
from llmgw.testing.trust import InMemoryTrust
from llmgw_agent.node.identity import KeptIdentity
from llmgw_agent.node.minting import Mint
from llmgw_agent.node.minting.mint import ask_apart
from llmgw_agent.node.minting.work import answer, key_pem, new_key
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.addresses import TcpAddress
from llmgw_agent.wire.authorities import authorities_digest

NODE = NodeId("gpu-01")


def granted(trust: InMemoryTrust, path: Path, mint: Mint) -> KeptIdentity:
    kept, key = KeptIdentity(path, mint), new_key()
    grant = pb.CertificateGrant(
        certificate_chain=trust.node_certificate(NODE, key.public_key()),
        ca_bundle=trust.authorities[0].pem,
        cluster_id=trust.cluster_id,
    )
    kept.take(key_pem(key).decode(), grant)
    return kept


def test_another_process_makes_keys_and_reads_certificates(tmp_path: Path) -> None:
    trust, mint = InMemoryTrust(), Mint()
    kept = granted(trust, tmp_path / "identity.json", mint)
    assert kept.is_usable(time.time())
    assert not kept.is_due(time.time())
    assert kept.authorities == authorities_digest(trust.authorities[0].pem)
    one, other = mint.renew(NODE), mint.renew(NODE)
    assert one.key != other.key
    assert "CERTIFICATE REQUEST" in one.request


def test_what_that_process_refuses_is_refused_here() -> None:
    trust, mint = InMemoryTrust(), Mint()
    chain = trust.node_certificate(NODE, new_key().public_key()).decode()
    with pytest.raises(ValueError, match="for another key"):
        mint.facts(key=key_pem(new_key()).decode(), chain=chain, authorities=chain)
    token = JoinToken.parse(trust.new_token())
    with pytest.raises(TransientError, match="no server at"):
        mint.join(TcpAddress("127.0.0.1", free_port()), token, NODE)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_a_process_that_cannot_be_had_is_told_as_passing(python: str) -> None:
    with pytest.raises(TransientError, match="no certificate can be made or read now: "):
        Mint(partial(ask_apart, python=python)).renew(NODE)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], Path]:
    """An identity as agents wrote it before they kept what it says."""

    def make() -> Path:
        path = tmp_path / "identity.json"
        granted(InMemoryTrust(), path, Mint(answer))
        document = json.loads(path.read_bytes())
        del document["facts"]
        path.write_text(json.dumps(document))
        return path

    return make


def test_an_older_agents_identity_is_read_once_and_completed(kept: Callable[[], Path]) -> None:
    asked: list[str] = []

    def counting(verb: str, question: bytes) -> bytes:
        asked.append(verb)
        return answer(verb, question)

    path = kept()
    for _ in range(2):
        assert KeptIdentity(path, Mint(counting)).is_usable(time.time())
    assert asked == ["facts"]


def test_an_older_agents_identity_that_cannot_be_read_is_named(kept: Callable[[], Path]) -> None:
    path = kept()
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "certificate_chain": "no certificate"}))
    with pytest.raises(ConfigError, match="join anew"):
        KeptIdentity(path, Mint(answer))
