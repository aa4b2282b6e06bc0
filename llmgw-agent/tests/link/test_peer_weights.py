"""Weights from other nodes of the fleet: real TLS, real agents' halves, a real server between them."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from cryptography.hazmat.primitives import serialization

from llmgw.clock import SystemClock
from llmgw.contracts.join import JoinToken, derive_join_authority
from llmgw.contracts.weights import FetchContext, FileProof
from llmgw.domain.ids import NodeId
from llmgw.errors import TransientError
from llmgw.testing.trust import InMemoryTrust
from llmgw_agent.node.identity import KeptIdentity, NotAPeer, PeerTls
from llmgw_agent.node.identity.keeping import new_key
from llmgw_agent.node.link import Abilities
from llmgw_agent.node.weights.admissions import Admissions
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.exchange import Problem, Question
from llmgw_agent.node.weights.manifest import (
    describe,
    digest_of,
    encode_manifest,
    manifest_path,
)
from llmgw_agent.node.weights.peers import PeerWeights
from llmgw_agent.node.weights.room import Room
from llmgw_agent.node.weights.sharing import Shared, Sharing
from llmgw_agent.node.weights.transfer import Refused, ask, fetch_listing
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.frames import WeightsPeer

REF = "origin:m"
PIECE = 64 << 10
FILES = {
    "files/config.json": b"{}",
    "files/model.safetensors": bytes(range(256)) * 4000,  # 16 pieces
    "files/empty.txt": b"",
}
SIZE = sum(map(len, FILES.values()))


class Origin:
    """Where weights come from that no node has."""

    scheme = "origin"

    def __init__(self) -> None:
        self.fetches = 0
        self.is_away = False

    def problem(self, ref: str) -> str | None:
        del ref
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        del ref
        self.fetches += 1
        if self.is_away:
            raise TransientError("the origin is away")
        for name, content in FILES.items():
            path = context.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            context.report(len(content), SIZE)
        return context.folder / "files"


class Proving(Origin):
    """One that says what its files are."""

    def __init__(self, files: Mapping[str, bytes] = FILES) -> None:
        super().__init__()
        self.files = files

    def proof(self, ref: str, context: FetchContext) -> Mapping[str, FileProof]:
        del ref, context
        return {
            name: FileProof(size=len(content), sha256=hashlib.sha256(content).hexdigest())
            if name.endswith(".safetensors")
            else FileProof(
                git_sha1=hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324
            )
            for name, content in self.files.items()
        }


class Asked(Shared):
    """Shared weights that count which of their pieces are asked for."""

    def __init__(self, shared: Shared, pieces: list[int]) -> None:
        self.__dict__.update(shared.__dict__)
        self._pieces = pieces

    def has(self, question: Question) -> bool:
        self._pieces.append(question.start)
        return super().has(question)


class PeerNode:
    """A node with a certificate, a cache and a door for others."""

    def __init__(self, workshop: Any, server: Any, name: str, source: Origin) -> None:
        self.origin = source
        self.agent = workshop.agent(
            server,
            node=name,
            token=workshop.trust.new_token(),
            abilities=Abilities(sharing=self),
        )
        self.folder: Path = self.agent.folder / "weights"
        self.tls = PeerTls(self.agent.kept)
        self.asked: list[int] = []
        self.sharing = self.door()
        self.cache = self.make_cache()

    def make_cache(self, *, trusts_fleet: bool = True) -> WeightCache:
        return WeightCache(
            self.folder,
            sources={self.origin.scheme: self.origin},
            roots=(),
            users=dict,
            room=Room(self.folder, reserve_bytes=0, budget_bytes=None),
            secrets={},
            agent=self.agent.inventory.node,
            peers=PeerWeights(
                find=self.agent.link.find_weights, tls=self.tls, trusts_fleet=trusts_fleet
            ),
        )

    def door(self, *, bytes_per_s: float = 1e9, connections: int = 8) -> Sharing:
        self.sharing = Sharing(
            tls=self.tls,
            admissions=Admissions(SystemClock()),
            find=self._find,
            address="127.0.0.1",
            port=0,
            connections=connections,
            bytes_per_s=bytes_per_s,
        )
        return self.sharing

    def admit(self, node: NodeId, manifest: str, *, for_s: float) -> None:
        self.sharing.admit(node, manifest, for_s=for_s)

    def _find(self, digest: str) -> Shared | None:
        shared = self.cache.shared(digest)
        return None if shared is None else Asked(shared, self.asked)

    @property
    def home(self) -> Path:
        (home,) = self.folder.iterdir()
        return home

    @property
    def model(self) -> Path:
        return self.home / "data" / "files" / "model.safetensors"

    @property
    def peer(self) -> WeightsPeer:
        assert self.sharing.port is not None
        return WeightsPeer(
            node=self.agent.inventory.node, address="127.0.0.1", port=self.sharing.port
        )

    async def have(self) -> str:
        """Fetch the weights, say to the server that they are here, and return their digest."""
        await self.cache.ensure(REF, report=ignore)
        manifest = describe(
            REF,
            data=self.home / "data",
            path="files",
            names=FILES,
            rest=lambda: None,
            piece_bytes=PIECE,
        )
        listing = encode_manifest(manifest)
        digest = digest_of(listing)
        manifest_path(self.home, digest).write_bytes(listing)
        self.cache = self.make_cache()  # which finds it
        self.tell()
        return digest

    def tell(self) -> None:
        self.agent.update(weights=self.cache.cached(), weights_port=self.sharing.port)

    def dial(self, peer: WeightsPeer) -> ssl.SSLSocket:
        return self.tls.dial(peer.address, peer.port, node=peer.node, silence_s=5)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PeerNode]:
        async with self.agent.running(), anyio.create_task_group() as tasks:
            await tasks.start(lambda *, task_status: self.sharing.run(task_status=task_status))
            self.tell()
            self.scope = tasks.cancel_scope
            with anyio.CancelScope(shield=True):
                yield self
            tasks.cancel_scope.cancel()


class Fleet:
    """A server and nodes that have registered with it."""

    def __init__(self, workshop: Any) -> None:
        self.workshop = workshop
        self.origin = Origin()

    @asynccontextmanager
    async def running(self, *names: str, **sources: Origin) -> AsyncIterator[list[PeerNode]]:
        async with AsyncExitStack() as stack:
            self.server = await stack.enter_async_context(
                self.workshop.server("127.0.0.1:0").running()
            )
            nodes = []
            for name in names:
                node = PeerNode(self.workshop, self.server, name, sources.get(name, self.origin))
                nodes.append(await stack.enter_async_context(node.running()))
            for node in nodes:
                await self.registered(node, weights=0)
            yield nodes

    async def registered(self, node: PeerNode, *, weights: int = 1) -> None:
        """Wait until the server knows the node's door, and as many weights of it."""
        name = node.agent.inventory.node

        def is_known() -> bool:
            session = self.server.dispatcher._sessions.of(name)  # what it was told
            if session is None or session.inventory.weights_port is None:
                return False
            shared = [item for item in session.inventory.weights if item.manifest]
            return len(shared) == weights

        await self.server.reports.until(is_known, limit_s=15)


@pytest.fixture
def fleet(workshop: Any) -> Fleet:
    return Fleet(workshop)


def ignore(done: float, total: float | None) -> None:
    pass


def content(node: PeerNode) -> dict[str, bytes]:
    data = node.home / "data"
    return {
        str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()
    }


async def test_a_node_has_weights_from_another_one_and_gives_them_on(fleet: Fleet) -> None:
    async with fleet.running("a", "b", "c") as (a, b, c):
        digest = await a.have()
        await fleet.registered(a)
        told: list[tuple[float, float | None]] = []
        path = await b.cache.ensure(REF, report=lambda *said: told.append(said))
        assert path == b.home / "data" / "files"
        assert content(b) == FILES
        assert told[-1] == (SIZE, SIZE)
        # Whoever has them by another node needs not find out what they are.
        assert b.cache.cached()[0].manifest == digest
        b.tell()
        await fleet.registered(b)
        await c.cache.ensure(REF, report=ignore)
        assert content(c) == FILES
        assert a.asked
        assert b.asked
        assert fleet.origin.fetches == 1


async def test_the_agent_finds_out_by_itself_what_it_can_give(fleet: Fleet) -> None:
    async with fleet.running("a", "b") as (a, b), anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: a.cache.run(task_status=task_status))
        await a.cache.ensure(REF, report=ignore)
        with anyio.fail_after(5):
            while not a.cache.cached()[0].manifest:  # noqa: ASYNC110 # nobody is told
                await anyio.sleep(0.01)
        a.tell()
        await fleet.registered(a)
        await b.cache.ensure(REF, report=ignore)
        assert content(b) == FILES
        assert fleet.origin.fetches == 1
        tasks.cancel_scope.cancel()


async def test_corrupt_bytes_are_noticed_and_had_from_the_origin(fleet: Fleet) -> None:
    async with fleet.running("a", "b") as (a, b):
        await a.have()
        await fleet.registered(a)
        with a.model.open("r+b") as file:
            file.seek(5 * PIECE + 7)
            file.write(b"\xff\xfe")
        await b.cache.ensure(REF, report=ignore)
        assert content(b) == FILES
        assert fleet.origin.fetches == 2


async def test_corrupt_bytes_of_one_node_are_had_from_another(fleet: Fleet) -> None:
    async with fleet.running("a", "b", "c") as (a, b, c):
        await a.have()
        await b.have()
        await fleet.registered(a)
        await fleet.registered(b)
        before = fleet.origin.fetches
        with a.model.open("r+b") as file:
            file.write(b"\xff\xfe")
        await c.cache.ensure(REF, report=ignore)
        assert content(c) == FILES
        assert fleet.origin.fetches == before


async def test_a_node_that_dies_on_the_way_is_replaced_by_another(fleet: Fleet) -> None:
    async with fleet.running("a", "b", "c") as (a, b, c):
        for node in (a, b):
            await node.have()
            await fleet.registered(node)
        before = fleet.origin.fetches
        a.sharing._pace._rate = 2 * PIECE  # slow enough to be caught at it
        fleet.origin.is_away = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: c.cache.ensure(REF, report=ignore))
            with anyio.fail_after(5):
                while not a.asked:  # noqa: ASYNC110 # a thread's list
                    await anyio.sleep(0.01)
            a.scope.cancel()
        assert content(c) == FILES
        assert fleet.origin.fetches == before


async def test_what_came_before_all_nodes_left_is_not_fetched_again(fleet: Fleet) -> None:
    async with fleet.running("b") as (b,), fleet_node(fleet, "a") as a:
        await a.have()
        a.sharing._pace._rate = 8 * PIECE  # slow enough to be caught at it
        await fleet.registered(a)
        with anyio.move_on_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: b.cache.ensure(REF, report=ignore))
                while len(a.asked) < 8:  # noqa: ASYNC110 # a thread's list
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
        first = set(a.asked)
        a.asked.clear()
        a.sharing._pace._rate = 1e9
        await b.cache.ensure(REF, report=ignore)
        assert content(b) == FILES
        assert len(a.asked) < len(FILES["files/model.safetensors"]) // PIECE
        assert first - set(a.asked)


@asynccontextmanager
async def fleet_node(fleet: Fleet, name: str) -> AsyncIterator[PeerNode]:
    node = PeerNode(fleet.workshop, fleet.server, name, fleet.origin)
    async with node.running():
        await fleet.registered(node, weights=0)
        yield node


async def test_a_node_that_gives_to_as_many_as_it_may_is_left_alone(fleet: Fleet) -> None:
    async with fleet.running("b") as (b,):
        node = PeerNode(fleet.workshop, fleet.server, "a", fleet.origin)
        node.door(connections=1)
        async with node.running():
            await fleet.registered(node, weights=0)
            digest = await node.have()
            await fleet.registered(node)
            node.admit(NodeId("b"), digest, for_s=60)
            with await anyio.to_thread.run_sync(b.dial, node.peer):
                await b.cache.ensure(REF, report=ignore)
        assert content(b) == FILES
        assert fleet.origin.fetches == 2


# --- whom a node believes --------------------------------------------------------------------


async def test_what_the_source_says_is_what_counts(fleet: Fleet) -> None:
    """Node a has something else under the ref, and says so honestly: its hashes are right."""
    other = {**FILES, "files/model.safetensors": b"\x01" * SIZE}
    async with fleet.running("a", "b", b=Proving(other)) as (a, b):
        await a.have()
        await fleet.registered(a)
        await b.cache.ensure(REF, report=ignore)
        assert b.origin.fetches == 1
        assert a.asked == []


async def test_a_small_file_that_is_another_one_is_noticed_at_the_end(fleet: Fleet) -> None:
    other = {**FILES, "files/config.json": b"[]"}
    async with fleet.running("a", "b", b=Proving(other)) as (a, b):
        await a.have()
        await fleet.registered(a)
        await b.cache.ensure(REF, report=ignore)
        assert a.asked
        assert b.origin.fetches == 1


@pytest.mark.parametrize(("source", "fetches"), [(Origin(), 1), (Proving(), 0)])
async def test_a_node_that_believes_proofs_alone_asks_the_origin_for_the_rest(
    fleet: Fleet, source: Origin, fetches: int
) -> None:
    async with fleet.running("a", "b", b=source) as (a, b):
        await a.have()
        await fleet.registered(a)
        b.cache = b.make_cache(trusts_fleet=False)
        await b.cache.ensure(REF, report=ignore)
        assert content(b) == FILES
        assert source.fetches == fetches


# --- whom a node gives to --------------------------------------------------------------------


async def test_a_node_gets_nothing_without_a_servers_word(fleet: Fleet) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        with pytest.raises(Refused, match="not_admitted"):
            await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)
        a.admit(NodeId("b"), digest, for_s=60)
        assert await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)


async def test_a_revoked_node_gets_no_word_and_is_never_named(fleet: Fleet) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        await fleet.registered(a)
        fleet.workshop.trust.revoke(NodeId("b"), "stolen")
        assert await b.agent.link.find_weights(REF) is None
        with pytest.raises(Refused, match="not_admitted"):
            await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)
    async with fleet.running("c", "d") as (c, d):
        await c.have()
        await fleet.registered(c)
        offer = await d.agent.link.find_weights(REF)
        assert offer is not None
        fleet.workshop.trust.revoke(NodeId("c"), "stolen")
        assert await d.agent.link.find_weights(REF) is None


async def test_a_session_that_ends_meanwhile_names_nobody_and_ends_nobody(fleet: Fleet) -> None:
    class GoneStub:
        async def find_weights(self, question: object, *, timeout: float) -> None:
            raise asyncio.CancelledError  # as grpc.aio does of a call whose channel was closed

    async with fleet.running("a") as (a,):
        a.agent.link._stubs = dict.fromkeys(a.agent.link._stubs, GoneStub())
        assert await a.agent.link.find_weights(REF) is None


async def test_a_node_that_is_revoked_while_it_fetches_gets_no_more(fleet: Fleet) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        await fleet.registered(a)
        assert await b.agent.link.find_weights(REF) is not None
        assert await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)
        fleet.workshop.trust.revoke(NodeId("b"), "stolen")
        await anyio.sleep(1.0)  # ten heartbeats of these servers, which look at each
        with pytest.raises(Refused, match="not_admitted"):
            await anyio.to_thread.run_sync(fetch_listing, a.peer, b.dial, digest)


async def test_strangers_get_no_connection(fleet: Fleet, tmp_path: Path) -> None:
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


async def test_a_node_that_poses_as_another_is_noticed(fleet: Fleet) -> None:
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
    fleet: Fleet, tmp_path: Path, file: str, start: int, size: int, problem: Problem
) -> None:
    async with fleet.running("a", "b") as (a, b):
        digest = await a.have()
        a.admit(NodeId("b"), digest, for_s=60)
        secret = tmp_path / "secret"
        secret.write_bytes(FILES["files/model.safetensors"])

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
        return KeptIdentity(path)
    key = new_key()
    return keep(path, key, trust.node_certificate(NodeId("b"), key.public_key()), member)


def keep(path: Path, key: Any, leaf: bytes, member: KeptIdentity) -> KeptIdentity:
    kept = KeptIdentity(path)
    assert member.pem is not None
    kept.take(
        key,
        pb.CertificateGrant(
            certificate_chain=leaf,
            ca_bundle=member.pem.authorities.encode(),
            cluster_id=member.cluster_id,
        ),
    )
    return kept
