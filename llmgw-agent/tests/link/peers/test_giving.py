"""A node gives weights to whom a server says, and nothing else to anybody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from cryptography.hazmat.primitives import serialization

from llmgw.contracts.join import JoinToken
from llmgw.contracts.joinproof import derive_join_authority
from llmgw.domain.ids import NodeId
from llmgw.errors import TransientError
from llmgw.testing.trust import InMemoryTrust
from llmgw_agent.node.identity import KeptIdentity, NotAPeer, PeerTls
from llmgw_agent.node.minting import Mint
from llmgw_agent.node.minting.work import answer, key_pem, new_key
from llmgw_agent.node.weights.exchange import Problem, Question
from llmgw_agent.node.weights.transfer import Refused, ask, fetch_listing
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.frames import WeightsPeer


async def test_a_node_gets_nothing_without_a_servers_word(fleet: Any) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        with pytest.raises(Refused, match="not_admitted"):
            await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)
        a.admit(NodeId("b"), digest, for_s=60)
        assert await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)


async def test_a_revoked_node_gets_no_word_and_is_never_named(fleet: Any) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        await fleet.registered(a)
        fleet.workshop.trust.revoke(NodeId("b"), "stolen")
        assert await b.agent.link.find_weights(fleet.ref) is None
        with pytest.raises(Refused, match="not_admitted"):
            await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)
    async with fleet.running("c", "d") as (c, d):
        await c.have()
        await fleet.registered(c)
        offer = await d.agent.link.find_weights(fleet.ref)
        assert offer is not None
        fleet.workshop.trust.revoke(NodeId("c"), "stolen")
        assert await d.agent.link.find_weights(fleet.ref) is None


async def test_a_session_that_ends_meanwhile_names_nobody_and_ends_nobody(fleet: Any) -> None:
    class GoneStub:
        async def find_weights(self, question: object, *, timeout: float) -> None:
            raise asyncio.CancelledError  # as grpc.aio does of a call whose channel was closed

    async with fleet.running("a") as (a,):
        a.agent.link._stubs = dict.fromkeys(a.agent.link._stubs, GoneStub())
        assert await a.agent.link.find_weights(fleet.ref) is None


async def test_a_node_that_is_revoked_while_it_fetches_gets_no_more(fleet: Any) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        await fleet.registered(a)
        assert await b.agent.link.find_weights(fleet.ref) is not None
        assert await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)
        fleet.workshop.trust.revoke(NodeId("b"), "stolen")
        await anyio.sleep(1.0)  # ten heartbeats of these servers, which look at each
        with pytest.raises(Refused, match="not_admitted"):
            await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)


async def test_strangers_get_no_connection(fleet: Any, tmp_path: Path) -> None:
    async with fleet.running("a", "b") as (a, b):
        await a.have()
        strangers = {
            "another cluster": InMemoryTrust(fleet.workshop.trust.cluster_id),
            "nobody": None,
        }
        for name, trust in strangers.items():
            tls = PeerTls(kept_identity(tmp_path / f"{name}.json", trust, b.agent.kept))
            with pytest.raises((OSError, TransientError)):
                await anyio.to_thread.run_sync(talk, tls, a.peer)
        # A join token's authority is trusted by servers, for joining. By nodes it is not.
        token = JoinToken.parse(fleet.workshop.trust.new_token())
        key = new_key()
        proof = derive_join_authority(token.id, token.secret).issue(key.public_key(), "b")
        kept = keep(tmp_path / "token.json", key, proof.public_bytes(PEM), b.agent.kept)
        with pytest.raises(OSError, match=r"(?i)ssl|reset|closed|pipe"):
            await anyio.to_thread.run_sync(talk, PeerTls(kept), a.peer)


async def test_a_node_that_poses_as_another_is_noticed(fleet: Any) -> None:
    async with fleet.running("a", "b") as (a, b):
        posing = WeightsPeer(node=NodeId("c"), address="127.0.0.1", port=a.peer.port)
        with pytest.raises(NotAPeer, match="node a answers"):
            await anyio.to_thread.run_sync(b.dial, posing)


@pytest.mark.parametrize(
    ("file", "start", "size", "problem"),
    [
        ("../entry.json", 0, 1, Problem.WRONG),
        ("files/../../entry.json", 0, 1, Problem.WRONG),
        ("/etc/passwd", 0, 1, Problem.WRONG),
        ("files", 0, 1, Problem.WRONG),
        ("", 0, 1, Problem.WRONG),
        ("files/config.json", 0, 3, Problem.WRONG),
        ("files/config.json", -1, 1, Problem.WRONG),
        ("files/config.json", 0, 0, Problem.WRONG),
        ("files/model.safetensors", 0, 1, Problem.GONE),  # a link, below
    ],
)
async def test_nothing_but_the_listed_files_can_be_had(
    fleet: Any, tmp_path: Path, file: str, start: int, size: int, problem: Problem
) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        a.admit(NodeId("b"), digest, for_s=60)
        secret = tmp_path / "secret"
        secret.write_bytes(fleet.files["files/model.safetensors"])

        def look() -> None:
            with b.dial(a.peer) as connection, connection.makefile("rb") as said:
                question = Question(manifest=digest, file=file, start=start, size=size)
                ask(connection, said, question, limit=1 << 20)

        found = a.cache.shared(digest)  # as it was when it was whole
        a.model.unlink()
        a.model.symlink_to(secret)
        a.sharing._find = lambda _: found  # a link that appears after the look at it
        with pytest.raises(Refused, match=problem.value):
            await anyio.to_thread.run_sync(look)


PEM = serialization.Encoding.PEM


def talk(tls: PeerTls, peer: WeightsPeer) -> None:
    """With TLS 1.3 a refused client notices only when it says something."""
    with (
        tls.dial(peer.address, peer.port, node=peer.node, silence_s=5) as connection,
        connection.makefile("rb") as said,
    ):
        ask(connection, said, Question(manifest="0" * 64), limit=1 << 20)


def kept_identity(path: Path, trust: InMemoryTrust | None, member: KeptIdentity) -> KeptIdentity:
    """Return an identity that another authority has signed, which believes ours; None: none."""
    if trust is None:
        return KeptIdentity(path, Mint(answer))
    key = new_key()
    return keep(path, key, trust.node_certificate(NodeId("b"), key.public_key()), member)


def keep(path: Path, key: Any, leaf: bytes, member: KeptIdentity) -> KeptIdentity:
    kept = KeptIdentity(path, Mint(answer))
    assert member.pem is not None
    kept.take(
        key_pem(key).decode(),
        pb.CertificateGrant(
            certificate_chain=leaf,
            ca_bundle=member.pem.authorities.encode(),
            cluster_id=member.cluster_id,
        ),
    )
    return kept
