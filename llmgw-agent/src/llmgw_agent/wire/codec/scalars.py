"""Texts, enums and option mappings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol, TypeVar

from llmgw_agent.wire.frames import MalformedFrame, UnknownFrame

E = TypeVar("E", bound=StrEnum)


class WireEnum(Protocol):
    """The part of a generated enum that is used here."""

    def Name(self, number: int) -> str: ...  # noqa: N802 # protobuf's own spelling


def text(value: str) -> str:
    """Return `value` with everything replaced that UTF-8 cannot carry (lone surrogates)."""
    return value.encode("utf-8", "replace").decode()


def texts(values: Mapping[str, str]) -> dict[str, str]:
    return {text(key): text(value) for key, value in values.items()}


def raw(line: str) -> bytes:
    """Return the bytes of a line; those kept by `surrogateescape` come back as they were."""
    try:
        return line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace")


def shown(line: bytes) -> str:
    """Return the text of a line, odd bytes as replacement characters."""
    return line.decode("utf-8", "replace")


def enum_value(kind: WireEnum, prefix: str, number: int, values: type[E]) -> E:
    """Return the value of an enum number. Raises UnknownFrame for one that is not ours."""
    try:
        return values[kind.Name(number).removeprefix(prefix)]
    except (ValueError, KeyError):
        raise UnknownFrame(f"{values.__name__} {number}") from None


def options_text(options: Mapping[str, object]) -> str:
    """Return one JSON object: an engine's options are typed by its adapter only."""
    return json.dumps(dict(options), separators=(",", ":"))


def options_value(source: str) -> dict[str, object]:
    try:
        value = json.loads(source) if source else {}
    except (ValueError, RecursionError):
        raise MalformedFrame("options are no JSON") from None
    if not isinstance(value, dict):
        raise MalformedFrame("options are no JSON object")
    return value
