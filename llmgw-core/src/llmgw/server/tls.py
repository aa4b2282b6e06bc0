"""The certificate of the HTTP listeners, followed on disk so that renewing one needs no restart."""

from __future__ import annotations

import ssl
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.clock import Clock
from llmgw.config.server import TlsSettings
from llmgw.errors import ConfigError, Problem
from llmgw.logs import get_logger

log = get_logger(__name__)

_LOOK_S = 10.0


class Certificate:
    """A context for listeners; new connections get what the files say now."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Read both files. Raises ConfigError that says what is wrong with them."""
        self._chain = chain
        self._key = key
        self._stamps = _stamps(chain, key)
        self.context = _context(chain, key)

    async def follow(self, clock: Clock) -> None:
        """Look at the files for ever; bad ones leave the last good certificate in force."""
        while True:
            await clock.sleep(_LOOK_S)
            await anyio.to_thread.run_sync(self.look)

    def look(self) -> None:
        """Take the files over if they have changed and are good."""
        stamps = _stamps(self._chain, self._key)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            _context(self._chain, self._key)  # tried apart: a half-taken pair would serve nobody
            self.context.load_cert_chain(self._chain, self._key)
        except (ConfigError, OSError) as error:
            log.error("certificate not renewed", reason=str(error), in_force="the last good one")
        else:
            log.info("certificate renewed", file=str(self._chain))


def certificate_of(settings: TlsSettings) -> Certificate | None:
    """Return the configured certificate; None without TLS. Raises ConfigError."""
    if settings.certificate is None or settings.key is None:
        return None
    return Certificate(settings.certificate, settings.key)


def servers_trust(settings: TlsSettings) -> ssl.SSLContext | None:
    """Return how certificates of servers' admin listeners are checked; None: by the machine's own
    roots. Raises ConfigError naming the file."""
    if settings.servers_ca is None:
        return None
    _check_text(settings.servers_ca, "CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=settings.servers_ca)
    except ssl.SSLError as error:
        raise _refusal(f"{settings.servers_ca} cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _context(chain: Path, key: Path) -> ssl.SSLContext:
    _check_text(chain, "CERTIFICATE")
    _check_text(key, "PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(chain, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _refusal(f"{key} is not the key of {chain}") from error
        raise _refusal(f"{chain} and {key} cannot be used: {error}") from error
    return context


def _check_text(path: Path, what: str) -> None:
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise _refusal(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _refusal(f"{path} is not PEM") from error
    if f"{what}-----" not in text:
        raise _refusal(f"{path} holds no {what.lower()} in PEM")
    if "ENCRYPTED" in text:
        # OpenSSL would ask the terminal for the password, and wait.
        raise _refusal(f"{path} is encrypted; write it without a password, with mode 0600")


def _refusal(message: str) -> ConfigError:
    return ConfigError("tls", [Problem(path="tls", message=message)])


def _stamps(*files: Path) -> tuple[tuple[int, int] | None, ...]:
    found: list[tuple[int, int] | None] = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_ino))
    return tuple(found)
