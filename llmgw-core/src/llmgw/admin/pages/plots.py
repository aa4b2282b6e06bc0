"""Small plots as the numbers of an SVG picture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llmgw.admin.pages.texts import milliseconds, rate
from llmgw.admin.pulse import Beat

WIDTH, HEIGHT = 300.0, 60.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One value over time."""

    label: str
    now: str  #: the newest value, as text
    strokes: tuple[str, ...]  #: `points` of polylines; more than one where values are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Some values over the same time and of the same unit."""

    title: str
    lines: tuple[Line, ...]
    top: str  #: what the upper edge stands for


Value = Callable[[Beat], float | None]
Words = Callable[[float | None], str]


def pulse_plots(beats: Sequence[Beat], *, devices_total: int) -> tuple[Plot, ...]:
    """Return what the overview draws of the last minutes."""
    return (
        _plot(
            "Requests a second",
            beats,
            {"all": lambda beat: beat.requests_per_s, "failed": lambda beat: beat.failed_per_s},
        ),
        _plot("Tokens a second", beats, {"output": lambda beat: beat.tokens_per_s}),
        _plot(
            "Time to first token",
            beats,
            {
                "p50": lambda beat: beat.first_token_p50_s,
                "p99": lambda beat: beat.first_token_p99_s,
            },
            words=milliseconds,
        ),
        _plot(
            "Requests now",
            beats,
            {"in flight": lambda beat: beat.in_flight, "waiting": lambda beat: beat.queued},
            words=_whole,
        ),
        _plot(
            "Devices in use",
            beats,
            {f"of {devices_total}": lambda beat: beat.devices_used},
            words=_whole,
            at_least=float(devices_total),
        ),
    )


def _plot(
    title: str,
    beats: Sequence[Beat],
    values: dict[str, Value],
    *,
    words: Words = rate,
    at_least: float = 0.0,
) -> Plot:
    columns = {label: [value(beat) for beat in beats] for label, value in values.items()}
    known = [value for column in columns.values() for value in column if value is not None]
    top = max([*known, at_least]) or 1.0
    return Plot(
        title=title,
        top=words(top),
        lines=tuple(
            Line(
                label=label, now=words(column[-1] if column else None), strokes=strokes(column, top)
            )
            for label, column in columns.items()
        ),
    )


def strokes(column: Sequence[float | None], top: float) -> tuple[str, ...]:
    """Return the points of a column as polylines of a picture whose upper edge is `top`."""
    step = WIDTH / max(1, len(column) - 1)
    found: list[list[str]] = [[]]
    for index, value in enumerate(column):
        if value is None:
            found.append([])
            continue
        found[-1].append(f"{index * step:.0f},{(HEIGHT - 2) * (1 - value / top) + 1:.1f}")
    return tuple(" ".join(points) for points in found if len(points) > 1)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
