"""How secrets that people carry are made and kept: by id, as a hash, shown once."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from llmgw.domain.secret import Secret

_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MintedSecret:
    """A secret at its making: the only time that its text exists here."""

    id: str
    text: Secret  #: `<prefix>_<id>_<random>`, or for join tokens the random part
    secret_hash: str


def mint(prefix: str) -> MintedSecret:
    """Return a new secret, `<prefix>_<12 hex digits>_<32 random bytes as base64url>`."""
    ident, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return MintedSecret(
        id=ident, text=Secret(f"{prefix}_{ident}_{secret}"), secret_hash=hash_secret(secret)
    )


def hash_secret(secret: str) -> str:
    """Return the hex SHA-256. No slow hash: the secret has 256 random bits to begin with.

    Any text is taken, lone surrogates of odd headers too (C060).
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def split_secret(prefix: str, presented: str) -> tuple[str, str] | None:
    """Return (id, secret) of what a caller presents; None if it is not of this kind."""
    parts = presented.split("_", 2)
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == prefix else None


def matches(secret: str, secret_hash: str | None) -> bool:
    """Compare in constant time. None (no such id) does the same work and is False."""
    same = hmac.compare_digest(hash_secret(secret), secret_hash or _NOBODY)
    return same and secret_hash is not None
