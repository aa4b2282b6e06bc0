"""Nodes that have weights from one another: real TLS, and a real server between them."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.clock import SystemClock
from llmgw.contracts.weights import FetchContext, FileProof
from llmgw.domain.ids import NodeId
from llmgw.errors import TransientError
from llmgw_agent.node.identity import PeerTls
from llmgw_agent.node.link import Abilities
from llmgw_agent.node.weights.admissions import Admissions
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.exchange import Question
from llmgw_agent.node.weights.manifest import (
    describe,
    digest_of,
    encode_manifest,
    manifest_path,
)
from llmgw_agent.node.weights.peers import PeerWeights
from llmgw_agent.node.weights.room import Room
from llmgw_agent.node.weights.sharing import Shared, Sharing
from llmgw_agent.wire.frames import WeightsPeer

REF = "origin:m"
PIECE = 64 << 10
FILES = {
    "files/config.json": b"{}",
    "files/model.safetensors": bytes(range(256)) * 4000,  # 16 pieces
    "files/empty.txt": b"",
}
SIZE = sum(map(len, FILES.values()))


def ignore(done: float, total: float | None) -> None:
    pass


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

    def content(self) -> dict[str, bytes]:
        """Return the files that the node has."""
        data = self.home / "data"
        return {
            str(path.relative_to(data)): path.read_bytes()
            for path in data.rglob("*")
            if path.is_file()
        }

    async def get(self, report: Callable[[float, float | None], None] = ignore) -> Path:
        """Fetch the weights from wherever they are."""
        return await self.cache.ensure(REF, report=report)

    async def have(self) -> str:
        """Fetch the weights, say to the server that they are here, and return their digest."""
        await self.get()
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

    ref = REF
    files = FILES
    size = SIZE
    piece = PIECE

    def __init__(self, workshop: Any) -> None:
        self.workshop = workshop
        self.origin = Origin()

    @staticmethod
    def source(*, proves: bool, files: Mapping[str, bytes] = FILES) -> Origin:
        """Return another origin, of these files. proves: it can say what they are."""
        return Proving(files) if proves else Origin()

    def node(self, name: str) -> PeerNode:
        """Return a node that is yet to be run."""
        return PeerNode(self.workshop, self.server, name, self.origin)

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
