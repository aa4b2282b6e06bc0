"""Texts for people mark names and commands by backticks; who shows them makes something of these."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARKED = re.compile(r"`([^`\n]+)`")


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """Cut a text into what is said and what is marked, which comes with True."""
    for number, part in enumerate(_MARKED.split(text)):
        if part:
            yield part, number % 2 == 1


def spelled(text: str) -> str:
    """Return a text for a terminal: a command stands bare, to be copied, a name in quotes."""
    return "".join(
        f"'{part}'" if is_marked and " " not in part else part for part, is_marked in parts(text)
    )
