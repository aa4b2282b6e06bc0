"""Keeps private keys encrypted in the store with a secret that is not in it."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem

_NONCE_BYTES = 12


class Seal:
    """AES-256-GCM under a key derived from the cluster secret."""

    def __init__(self, cluster_secret: Secret) -> None:
        key = HKDF(
            algorithm=hashes.SHA256(), length=32, salt=None, info=b"llmgw cluster seal v1"
        ).derive(cluster_secret.reveal().encode())
        self._cipher = AESGCM(key)

    def close(self, plain: bytes, *, purpose: str) -> str:
        """Return a sealed text; it opens only under the same purpose."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, plain, purpose.encode())
        return base64.b64encode(nonce + sealed).decode()

    def open(self, text: str, *, purpose: str) -> bytes:
        """Return what was sealed. Raises ConfigError if the secret is not the one used then."""
        raw = base64.b64decode(text)
        try:
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], purpose.encode())
        except InvalidTag:
            raise ConfigError(
                "cluster_secret_file",
                [
                    Problem(
                        path="cluster_secret_file",
                        message="the cluster secret does not fit this store; use the file that "
                        "the first server of this cluster made, or the backup of it",
                    )
                ],
            ) from None


def read_cluster_secret(path: Path, *, may_create: bool) -> Secret:
    """Return the secret kept in a file, made with 0600 if the store is new.

    Raises ConfigError if it is missing for a store that needs it, or too short to be a secret.
    """
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        if not may_create:
            raise _problem(
                f"{path} is missing, and the keys in the store cannot be read without it; copy it "
                "from another server of this cluster or from the backup"
            ) from None
        return write_secret(path, Secret(secrets.token_urlsafe(32)))
    except OSError as error:
        raise _problem(f"{path} cannot be read: {error.strerror}") from None
    if len(text) < 16:
        raise _problem(f"{path} must hold at least 16 characters")
    return Secret(text)


def write_secret(path: Path, secret: Secret) -> Secret:
    """Put a secret into a file of mode 0600, whole or not at all, and return it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret.reveal() + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return secret


def _problem(message: str) -> ConfigError:
    return ConfigError(
        "cluster_secret_file", [Problem(path="cluster_secret_file", message=message)]
    )
