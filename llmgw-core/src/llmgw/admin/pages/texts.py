"""How values read on the page. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmgw.domain.units import format_duration


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


def number(value: int) -> str:
    """Return a count with thin groups of three."""
    return f"{value:,}".replace(",", "\u202f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One column of a plot, in the units of its picture."""

    x: float
    y: float
    width: float
    height: float
    label: str


def bars(
    values: Sequence[tuple[str, float]], *, width: float = 480.0, height: float = 80.0
) -> Iterable[Bar]:
    """Return the columns of a plot of labelled values, the highest as high as the picture."""
    most = max((value for _, value in values), default=0.0) or 1.0
    step = width / max(1, len(values))
    for index, (label, value) in enumerate(values):
        tall = height * value / most
        yield Bar(
            x=round(index * step, 2),
            y=round(height - tall, 2),
            width=round(step * 0.8, 2),
            height=round(tall, 2),
            label=label,
        )
