"""What two nodes say to each other about weights: one line asks, one line and bytes answer.

    {"manifest": DIGEST}                                     -> {"size": N}, N bytes: the list of files
    {"manifest": DIGEST, "file": F, "start": S, "size": N}   -> {"size": N}, N bytes of that file
                                                             -> {"problem": CODE}

As many times as one likes on one connection. There is nothing else that can be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import IO, TypeVar

import msgspec

T = TypeVar("T")

_LINE_LIMIT = 4096


class Problem(StrEnum):
    """Why a node does not give what it is asked for."""

    NOT_ADMITTED = "not_admitted"  #: no server has said that the asker may have it, or not lately
    BUSY = "busy"  #: it gives to as many as it may already
    GONE = "gone"  #: it has these weights no more
    WRONG = "wrong"  #: they have no such file, or not so much of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    manifest: str
    file: str | None = None  #: as the manifest names it; None: the manifest itself
    start: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    size: int = 0  #: bytes that follow
    problem: str | None = None  #: a Problem, or one that only a newer agent knows


class NotUnderstood(Exception):
    """The other end says something else than a node would."""


def line_of(said: Question | Answer) -> bytes:
    return msgspec.json.encode(said) + b"\n"


def read_line(stream: IO[bytes], kind: type[T]) -> T | None:
    """Return the next thing said; None if the other end has left. Raises NotUnderstood."""
    line = stream.readline(_LINE_LIMIT)
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise NotUnderstood("a line without an end")
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise NotUnderstood(str(error)) from None
