"""The node's key and certificate, in one file that is whole or absent."""

from __future__ import annotations

import datetime
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import msgspec

from llmgw.errors import ConfigError, Problem
from llmgw_agent.node.durable import DiskFull, write_atomically
from llmgw_agent.node.minting import Facts, Mint
from llmgw_agent.wire import agent_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    key: str = ""
    certificate_chain: str = ""
    ca_bundle: str = ""
    cluster_id: str = ""
    pool: str | None = None
    facts: Facts | None = None  #: None beside a certificate: an older agent wrote it


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityPem:
    """What proves this node, and whom it believes. All PEM."""

    key: str = field(repr=False)
    chain: str
    authorities: str


class KeptIdentity:
    """`identity.json`, 0600: key and certificate can never disagree, whenever the power goes."""

    def __init__(self, path: Path, mint: Mint | None = None) -> None:
        """Read `path`, which need not exist. Raises ConfigError if it is not what we wrote,
        TransientError where that cannot be told now."""
        self._path = path
        self.mint = mint or Mint()
        try:
            self._document = msgspec.json.decode(path.read_bytes(), type=_Document)
            if self._document.certificate_chain and self._document.facts is None:
                self._document = self._read(self._document)
                with suppress(DiskFull, OSError):  # then they are read once more at the next start
                    write_atomically(path, msgspec.json.encode(self._document))
        except FileNotFoundError:
            self._document = _Document()
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(
                str(path),
                [
                    Problem(
                        path="",
                        message=f"cannot be read: {error}; remove it and start the agent with "
                        "--join to join anew, engines keep running",
                    )
                ],
            ) from error

    def _read(self, document: _Document) -> _Document:
        facts = self.mint.facts(
            key=document.key, chain=document.certificate_chain, authorities=document.ca_bundle
        )
        return replace(document, facts=facts)

    @property
    def pool(self) -> str | None:
        """The pool that the join token bound this node to; None: it chooses."""
        return self._document.pool

    @property
    def cluster_id(self) -> str | None:
        """The cluster that signed the certificate; None: there is none, or it was forgotten."""
        return self._document.cluster_id or None

    @property
    def pins(self) -> frozenset[str]:
        """`key_pin` of every authority that this node believes."""
        facts = self._document.facts
        return frozenset(facts.pins) if facts else frozenset()

    @property
    def authorities(self) -> str:
        """`authorities_digest` of those that this node believes; "": it has no certificate."""
        facts = self._document.facts
        return facts.digest if facts else ""

    def is_usable(self, wall: float) -> bool:
        """Whether there is a certificate, and it has not run out. wall: Unix seconds."""
        facts = self._document.facts
        return facts is not None and wall < facts.not_after

    def is_due(self, wall: float) -> bool:
        """Whether a third of the certificate's life is over: 10 days of 30."""
        if (facts := self._document.facts) is None:
            return False
        return wall >= facts.not_before + (facts.not_after - facts.not_before) / 3

    @property
    def expired_on(self) -> datetime.date | None:
        """The day on which the certificate runs, or ran, out."""
        if (facts := self._document.facts) is None:
            return None
        return datetime.datetime.fromtimestamp(facts.not_after, datetime.UTC).date()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return what proves this node to a server, and says which servers to believe."""
        document = self._document
        return grpc.ssl_channel_credentials(
            root_certificates=document.ca_bundle.encode(),
            private_key=document.key.encode(),
            certificate_chain=document.certificate_chain.encode(),
        )

    @property
    def pem(self) -> IdentityPem | None:
        """What other nodes are shown; None: there is no certificate."""
        document = self._document
        if document.facts is None:
            return None
        return IdentityPem(
            key=document.key, chain=document.certificate_chain, authorities=document.ca_bundle
        )

    def take(self, key: str, grant: pb.CertificateGrant) -> None:
        """Keep a new key (PEM) with its certificate. Blocks.

        Raises ValueError if they do not belong together, TransientError, DiskFull or OSError,
        each with nothing changed.
        """
        document = self._read(
            _Document(
                key=key,
                certificate_chain=grant.certificate_chain.decode(),
                ca_bundle=grant.ca_bundle.decode(),
                cluster_id=grant.cluster_id,
                # A renewal says nothing about the pool: the token did, once.
                pool=grant.pool if grant.HasField("pool") else self._document.pool,
            )
        )
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._path, msgspec.json.encode(document))
        self._document = document

    def forget(self) -> None:
        """Drop the certificate (`--rejoin`); the file stays until the next one is there."""
        self._document = _Document()
