"""What is asked of the process that makes keys and reads certificates, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AskJoin:
    """Look which authority stands behind a server, and prove a join token under it."""

    host: str
    port: int
    node: str
    token_id: str
    secret: str = field(repr=False)
    pin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPapers:
    """What a node joins with. All PEM."""

    authority: str  #: the server's, which the token names
    key: str = field(repr=False)  #: of the certificate to come
    proof: str  #: a certificate for this key, by the token's authority
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRenew:
    """Make a new key."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewPapers:
    """A new key, and the request for its certificate. PEM."""

    key: str = field(repr=False)
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskFacts:
    """Read an identity. All PEM."""

    key: str = field(repr=False)
    chain: str
    authorities: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a certificate and the authorities beside it say."""

    not_before: float  #: Unix seconds
    not_after: float
    pins: tuple[str, ...]  #: `key_pin` of every authority
    digest: str  #: `authorities_digest` of them
