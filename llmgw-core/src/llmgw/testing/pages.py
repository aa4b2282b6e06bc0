"""Reads a page of documentation: its blocks, and the commands that it tells its reader to type.

In a block of `console` a line that begins with `$ ` is a command, which goes on in the next line
after a backslash or within quotes; all else is output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands between two fences."""

    section: str  #: the title above it
    language: str
    text: str

    @property
    def path(self) -> str | None:
        """The file that it is, if its first line is a comment with a path."""
        found = re.match(r"# ([\w./-]+\.\w+)(?=[\s,])", self.text)
        return found[1] if found and self.language != "console" else None


def blocks(page: str) -> Iterator[Block]:
    """Yield every block of a page, in order."""
    section, last = "", 0
    for found in _FENCE.finditer(page):
        if titles := _TITLE.findall(page, last, found.start()):
            section = titles[-1]
        last = found.end()
        yield Block(section=section, language=found[1], text=found[2])


def commands(block: str) -> Iterator[str]:
    """Yield every command of a block, as it stands."""
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while _goes_on(command):
                command += f"\n{next(lines)}"
            yield command


def commands_of(page: str) -> Iterator[str]:
    """Yield every command of a page, as it stands."""
    for block in blocks(page):
        if block.language == "console":
            yield from commands(block.text)


def without_blocks(page: str) -> str:
    """Return what stands between the blocks."""
    return _FENCE.sub("", page)


def _goes_on(command: str) -> bool:
    if command.endswith("\\"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        return True
    return False
