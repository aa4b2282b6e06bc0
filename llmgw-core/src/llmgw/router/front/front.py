"""What all connections of one listener share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uvicorn.server import ServerState

from llmgw.config.server import RouterSettings
from llmgw.router.front.cors import Cors
from llmgw.router.front.proxies import NOBODY, Proxies
from llmgw.router.ingress import Ingress
from llmgw.router.metrics import RouterMetrics
from llmgw.router.outbox import Outbox
from llmgw.router.routes import Route
from llmgw.router.timers import TimerWheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost before it has been answered."""

    body_bytes: int = 64 * 1024 * 1024
    head_s: float = 10.0
    body_idle_s: float = 60.0
    body_floor: float = 1024.0  #: bytes a second, over the whole body
    keep_alive_s: float = 75.0
    stalled_s: float = 60.0
    connections: int = 16384
    per_address: int | None = None
    proxies: Proxies = NOBODY  #: who speak for many clients each

    @staticmethod
    def of(settings: RouterSettings) -> Limits:
        deadlines = settings.deadlines
        return Limits(
            body_bytes=int(settings.body_limit_mib * 1024 * 1024),
            head_s=deadlines.request_head,
            body_idle_s=deadlines.request_body_idle,
            keep_alive_s=deadlines.keep_alive,
            stalled_s=deadlines.client_stalled,
            connections=settings.max_connections,
            per_address=settings.max_connections_per_address,
            proxies=Proxies(settings.trusted_proxies),
        )


class Front:
    """One listener: its routes, its limits, and how many are connected."""

    def __init__(
        self,
        *,
        limits: Limits,
        wheel: TimerWheel,
        metrics: RouterMetrics,
        hot: Mapping[bytes, Route] | None = None,
        ingress: Ingress | None = None,
        cors: Cors | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.limits = limits
        self.wheel = wheel
        self.metrics = metrics
        self.hot: Mapping[bytes, Route] = hot or {}
        self.ingress = ingress
        self.cors = cors or Cors(())
        self.outbox = outbox or Outbox()
        self.server: ServerState | None = None  #: uvicorn's, once somebody has connected
        self.count = 0
        self.by_address: dict[str, int] = {}
        self._date_of: Sequence[tuple[bytes, bytes]] = ()
        self._date = b""

    def date(self, default_headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return uvicorn's default headers, serialised once for each list, that is each second."""
        if default_headers is not self._date_of:
            self._date_of = default_headers
            self._date = b"".join(b"%b: %b\r\n" % item for item in default_headers)
        return self._date

    def admits(self, address: str) -> bool:
        """Count a connection in; False, and nothing counted, where it is one too many."""
        limits = self.limits
        if self.count >= limits.connections:
            return False
        if limits.per_address is not None and not self._speaks_for_many(address):
            mine = self.by_address.get(address, 0)
            if mine >= limits.per_address:
                return False
            self.by_address[address] = mine + 1
        self.count += 1
        self.metrics.connections += 1
        return True

    def _speaks_for_many(self, address: str) -> bool:
        return _is_loopback(address) or self.limits.proxies.trusts(address)

    def left(self, address: str) -> None:
        """Count a connection out that was admitted."""
        self.count -= 1
        self.metrics.connections -= 1
        mine = self.by_address.get(address)
        if mine is not None:
            if mine > 1:
                self.by_address[address] = mine - 1
            else:
                del self.by_address[address]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "")
