"""How values read on the page. Pure."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from llmgw.domain.units import format_duration
from llmgw.domain.wording import parts


def age(at: float | None, now: float) -> str:
    """Return how long ago a time was; `in 5m` for one to come; `-` for none."""
    if at is None:
        return "-"
    return format_duration(now - at) if at <= now else f"in {format_duration(at - now)}"


def moment(at: float | None) -> str:
    """Return a time in UTC, to the second."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def mib(value: float | None) -> str:
    """Return memory in the unit that fits."""
    if value is None:
        return "-"
    return f"{value:.0f} MiB" if value < 1024 else f"{value / 1024:.1f} GiB"


def blank(value: object) -> object:
    """Return `-` for what is not known or empty."""
    return "-" if value is None or value == "" or value == () else value


def spelled(text: object) -> Markup:
    """Return a sentence of ours whose marked words are code; all of it is escaped."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if is_marked else escape(part)
        for part, is_marked in parts(str(text))
    )


def number(value: int) -> str:
    """Return a count with thin groups of three."""
    return f"{value:,}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """Return a figure with as many digits as one reads at a glance."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    """Return seconds in the unit that fits."""
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.1f} s"


# Colours and cursor movements of terminals (ECMA-48), and titles of their windows.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def harmless(line: str) -> str:
    """Return a line of a log as plain text: no terminal's codes, odd characters made visible.

    What turns text around or hides it would let a line pass for another.
    """
    return "".join(map(_visible, _TERMINAL.sub("", line)))


def _visible(char: str) -> str:
    if char == "\t" or (char >= " " and unicodedata.category(char) not in ("Cc", "Cf")):
        return char
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a line, and whether it is what was searched for."""

    text: str
    found: bool


def pieces(line: str, wanted: str) -> Iterator[Piece]:
    """Cut a line at each place where `wanted` is, in any case of letters."""
    last = 0
    for match in re.finditer(re.escape(wanted), line, re.IGNORECASE) if wanted else ():
        yield Piece(text=line[last : match.start()], found=False)
        yield Piece(text=match.group(), found=True)
        last = match.end()
    yield Piece(text=line[last:], found=False)
