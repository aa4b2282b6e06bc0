"""Texts for a terminal: aligned tables, ages, sizes, trees. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from llmgw.adminapi.explain import RefusalReply
from llmgw.domain.units import format_duration
from llmgw.domain.wording import spelled

# What engines and clients wrote must not move the cursor or recolour the screen (C057).
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

#: Less of a sentence says nothing: then lines are longer than the terminal is wide.
_LEAST_SENTENCE = 20


def plain(text: str) -> str:
    """Return text whose control characters are visible and harmless."""
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def readable(text: str) -> str:
    """Return a sentence of the server's: harmless, and its marked words as a terminal has them."""
    return plain(spelled(text))


def table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None
) -> str:
    """Return an aligned table; a blank is `-`, so that columns can be cut by `awk`.

    width: of the terminal that it has to fit. The last column, a sentence that stands in full
    elsewhere, is cut for it; no other is, for their words are copied.
    """
    cells = [list(titles), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    if width is not None:
        room = max(_LEAST_SENTENCE, width - sum(widths[:-1]) - 2 * len(widths[:-1]))
        widths[-1] = min(widths[-1], room)
        for row in cells:
            row[-1] = _cut(row[-1], room)
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Return `name   value` lines."""
    known = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in known)


def age(at: float | None, now: float) -> str:
    """Return how long ago a time was; `in 5m` for one to come."""
    if at is None:
        return "-"
    return format_duration(now - at) if at <= now else f"in {format_duration(at - now)}"


def size(count: float | None) -> str:
    """Return bytes in the unit that fits."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counts(by_state: Iterable[tuple[str, int]]) -> str:
    """Return `2 ready, 1 lost`."""
    return ", ".join(f"{count} {state}" for state, count in by_state) or "none"


def refusal_tree(refusals: Iterable[RefusalReply], depth: int = 0, *, told: str = "") -> list[str]:
    """Return why not, one line a reason, those that it is made of indented below it.

    told: the way out that stands above, and need not be repeated.
    """
    lines = []
    for refusal in refusals:
        where = " ".join(
            f"{word} {name}"
            for word, name in (("profile", refusal.profile), ("node", refusal.node))
            if name
        )
        sentence = readable(refusal.sentence)
        lines.append("  " * depth + f"{sentence}  [{refusal.code}]")
        if where and where not in refusal.sentence:
            lines[-1] += f"  ({plain(where)})"
        if refusal.figures:
            lines.append("  " * (depth + 1) + plain(refusal.figures))
        if refusal.hint not in ("", told):
            lines.append("  " * (depth + 1) + f"way out: {readable(refusal.hint)}")
        lines += refusal_tree(refusal.parts, depth + 1, told=refusal.hint or told)
    return lines


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _cell(value: object) -> str:
    if value is None or value in ("", (), []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ",".join(str(item) for item in value)
    return plain(str(value)).replace("\n", " ").replace("\t", " ")
