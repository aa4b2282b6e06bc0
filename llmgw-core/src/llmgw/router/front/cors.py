"""Cross-origin answers for browsers: off unless origins are configured."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.router.replies import Reply

_METHODS = b"GET, POST, OPTIONS"
_EXPOSED = (
    b"x-request-id, x-llmgw-endpoint, x-llmgw-model, x-llmgw-attempts, x-llmgw-explain, retry-after"
)


class Cors:
    """Which origins may read answers. Credentials are never allowed: keys are headers."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._all = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, origin: bytes | None) -> bytes:
        """Return the headers of any answer to this origin; errors carry them too (C007)."""
        if origin is None or not self._allows(origin):
            return b""
        return (
            b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n"
            % (
                b"*" if self._all else origin,
                _EXPOSED,
            )
        )

    def preflight(self, origin: bytes, asked_headers: bytes | None) -> Reply:
        """Return the answer to a preflight. It never carries a key, so none is asked for."""
        if not self._allows(origin):
            return Reply(204, b"")
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"600"),
        ]
        if asked_headers:
            headers.append((b"access-control-allow-headers", asked_headers))
        return Reply(204, b"", headers)

    def _allows(self, origin: bytes) -> bool:
        return self._all or origin in self._origins
