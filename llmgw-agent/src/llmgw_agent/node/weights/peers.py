"""Weights from other nodes of the fleet that have them. Runs on a thread of the event loop's.

The servers say who has them and what their files are called by; the ref or its source say what
the files must be, where they can. Bytes are believed when their hashes are right, whoever sent them.
"""

from __future__ import annotations

import hashlib
import shutil
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.from_thread

from llmgw.contracts.weights import FetchContext, FileProof, Proves, WeightSource
from llmgw.errors import LlmgwError
from llmgw.logs import get_logger
from llmgw_agent.node.durable import write_atomically
from llmgw_agent.node.identity.peers import NotAPeer, PeerTls
from llmgw_agent.node.weights.contained import contained
from llmgw_agent.node.weights.exchange import NotUnderstood
from llmgw_agent.node.weights.faults import Corrupt
from llmgw_agent.node.weights.manifest import (
    Manifest,
    disagreement,
    manifest_path,
    read_manifest,
)
from llmgw_agent.node.weights.transfer import Refused, Transfer, fetch_listing
from llmgw_agent.node.weights.verify import CHUNK_BYTES
from llmgw_agent.wire.frames import WeightsOffer, WeightsPeer

log = get_logger(__name__)

_ROUNDS_IN_VAIN = 2
_SILENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWeights:
    """Fetches from whoever the servers name."""

    find: Callable[
        [str], Coroutine[Any, Any, WeightsOffer | None]
    ]  #: who has a ref, on the event loop
    tls: PeerTls
    trusts_fleet: bool
    """Whether the fleet's word is enough for weights of which neither ref nor source says what
    they are."""

    def fetch(
        self, ref: str, *, source: WeightSource, context: FetchContext, home: Path
    ) -> Path | None:
        """Return the verified file or folder under `context.folder`; None if no node gives them.

        Their manifest is kept in `home`. Raises what `context.report` raises, NoRoom, DiskFull
        and OSError of this node's own disk.
        """
        offer = self._ask(ref)
        if offer is None:
            return None
        proof = _proof(source, ref, context)
        if proof is None and not self.trusts_fleet:
            return None
        listing = self._listing(ref, offer)
        if listing is None:
            return None
        manifest = read_manifest(listing, ref=ref, digest=offer.manifest)
        if proof is not None and (why := disagreement(manifest, proof)):
            log.warning("weights of other nodes not taken", ref=ref, reason=why)
            return None
        transfer = Transfer(manifest, digest=offer.manifest, context=context)
        context.reserve(transfer.missing_bytes)
        self._carry(transfer, ref, offer)
        if not transfer.is_complete:
            transfer.abandon()
            return None
        transfer.finish()
        path = _accepted(manifest, proof, context)
        if path is not None:
            write_atomically(manifest_path(home, offer.manifest), listing)
            log.info("weights fetched from other nodes", ref=ref)
        return path

    def _ask(self, ref: str) -> WeightsOffer | None:
        return anyio.from_thread.run(self.find, ref)

    def _carry(self, transfer: Transfer, ref: str, offer: WeightsOffer) -> None:
        """Fetch as long as it goes on, asking the servers again whenever no node gives any more.

        They may know others by then; and what a node may have, it may have for a while only.
        """
        peers = offer.peers
        in_vain = 0
        while not transfer.is_complete and peers and in_vain < _ROUNDS_IN_VAIN:
            before = transfer.missing_bytes
            transfer.run(peers, self._dial)
            for node, reason in transfer.take_complaints():
                log.warning("node gives no weights", node=node, ref=ref, reason=reason)
            in_vain = in_vain + 1 if transfer.missing_bytes == before else 0
            if not transfer.is_complete:
                newer = self._ask(ref)
                peers = newer.peers if newer and newer.manifest == offer.manifest else ()
                peers = tuple(peer for peer in peers if peer.node not in transfer.liars)

    def _listing(self, ref: str, offer: WeightsOffer) -> bytes | None:
        """Return the manifest from whichever node has it as the server says."""
        for peer in offer.peers:
            try:
                listing = fetch_listing(peer, self._dial, offer.manifest)
                read_manifest(listing, ref=ref, digest=offer.manifest)
            except (OSError, NotAPeer, NotUnderstood, Refused, LlmgwError) as error:
                log.warning("node gives no weights", node=peer.node, ref=ref, reason=str(error))
            else:
                return listing
        return None

    def _dial(self, peer: WeightsPeer) -> ssl.SSLSocket:
        return self.tls.dial(peer.address, peer.port, node=peer.node, silence_s=_SILENCE_S)


def _proof(source: WeightSource, ref: str, context: FetchContext) -> Mapping[str, FileProof] | None:
    """Return what the source says that the files are; None if it cannot be asked, or does not say."""
    if not isinstance(source, Proves):
        return None
    try:
        with contained(source, ref):
            proof = source.proof(ref, context)
    except LlmgwError as error:
        log.debug("source cannot be asked about weights", ref=ref, reason=str(error))
        return None
    # Some mirrors of the hub know sizes alone, which prove nothing.
    says = all(told.sha256 or told.git_sha1 for told in proof.values())
    return proof if says else None


def _accepted(
    manifest: Manifest, proof: Mapping[str, FileProof] | None, context: FetchContext
) -> Path | None:
    """Return where the weights are, nothing else beside them; None if they are not what they
    should be, and then nothing is left of them."""
    folder = context.folder
    try:
        for name, told in (proof or {}).items():
            _check(folder / name, told, context)
    except Corrupt as error:
        log.warning("weights of other nodes not taken", ref=manifest.ref, reason=str(error))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return None
    names = {folder / file.name for file in manifest.files}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path not in names):
            path.unlink()
    return folder / manifest.path


def _check(path: Path, told: FileProof, context: FetchContext) -> None:
    size = path.stat().st_size
    sha256 = hashlib.sha256()
    sha1 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            if told.sha256 is not None:
                sha256.update(piece)
            if told.git_sha1 is not None:
                sha1.update(piece)
            context.report(size, size)
    if told.sha256 not in (None, sha256.hexdigest()):
        raise Corrupt(f"{path.name} has another SHA-256 than at the source")
    if told.git_sha1 not in (None, sha1.hexdigest()):
        raise Corrupt(f"{path.name} is another file than at the source")
