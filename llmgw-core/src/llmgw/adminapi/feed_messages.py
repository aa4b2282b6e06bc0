"""What goes over the feed between servers and stand-alone routers, and how it is written.

Downwards one JSON object a line: a whole snapshot, then another whenever anything changed, and
pulses while nothing does. Upwards one report per request. Secrets are revealed here, since the
feed must carry engines' credentials; it needs a token of the highest role for that reason.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.domain.endpoints import Endpoint, ModelStatus, RouterUsage
from llmgw.domain.ids import Epoch, ModelName
from llmgw.domain.keys import ApiKey, KeySpend
from llmgw.domain.secret import Secret
from llmgw.domain.shares import RouterShares, RouterWants
from llmgw.domain.usage import UsageBatch

PULSE_S = 5.0
"""A feed says something at least this often; three times as long is silence."""

NOT_YET = -1
"""Of a report's `applied`: no snapshot has this serial."""


class FeedSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Everything that a router needs, as one server knows it. Also the table on disk."""

    cluster: str  #: id of the store; epochs of two clusters say nothing about each other
    server: str  #: who says so, for people
    epoch: Epoch
    leading: bool
    serial: int  #: counts this server's snapshots; goes back in a report's `applied`
    endpoints: tuple[Endpoint, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    keys: tuple[ApiKey, ...] = ()


class FeedSpend(msgspec.Struct, frozen=True, kw_only=True, tag="spend"):
    """What keys with budgets have spent, summed over all routers."""

    spend: tuple[KeySpend, ...]


class FeedPulse(msgspec.Struct, frozen=True, kw_only=True, tag="pulse"):
    """The server is alive and nothing has changed."""


FeedLine = FeedSnapshot | FeedSpend | FeedPulse


class RouterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a router says back, each second."""

    router: str  #: unique per process
    applied: int | None
    """Serial of this server's snapshot that is in force; None: another's is; `NOT_YET`: this
    server's will be."""
    usage: RouterUsage
    batch: UsageBatch | None = None  #: repeated until it has been answered
    nudges: tuple[ModelName, ...] = ()  #: models that somebody waits for
    wants: RouterWants = RouterWants()
    serial: int | None = None  #: of the shares in force, as this server told them; None: none yet
    routers: int = 1  #: among how many they are


def _reveal(value: object) -> object:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(type(value).__name__)


def _conceal(kind: type, value: Any) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise NotImplementedError(kind.__name__)


_encoder = msgspec.json.Encoder(enc_hook=_reveal)
_lines = msgspec.json.Decoder(FeedLine, dec_hook=_conceal)
_shares = msgspec.json.Decoder(RouterShares)
_reports = msgspec.json.Decoder(RouterReport, dec_hook=_conceal)


def encode_line(line: FeedLine) -> bytes:
    """Return one line, its newline included."""
    return _encoder.encode(line) + b"\n"


def decode_line(line: bytes) -> FeedLine:
    """Read one line. Raises ValueError saying what is wrong; fields that are not known are skipped."""
    return _lines.decode(line)


def encode_report(report: RouterReport) -> bytes:
    return _encoder.encode(report)


def decode_report(body: bytes) -> RouterReport:
    """Read a report. Raises ValueError saying what is wrong."""
    return _reports.decode(body)


def encode_shares(shares: RouterShares) -> bytes:
    """Return the answer to a report."""
    return _encoder.encode(shares)


def decode_shares(body: bytes) -> RouterShares:
    """Read the answer to a report. Raises ValueError saying what is wrong."""
    return _shares.decode(body)
