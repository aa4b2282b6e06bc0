"""Aligned tables: one row a line, blanks printed as `-` so that columns can be cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the lines of a table, its head in capitals; columns are two spaces apart."""
    lines = [[column.upper() for column in head]]
    lines += [["-" if cell in (None, "") else str(cell) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
