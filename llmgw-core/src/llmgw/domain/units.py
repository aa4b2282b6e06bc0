"""Durations and counts as people write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> float:
    """Return seconds for `90`, `1.5`, `90s`, `15m`, `1h30m` or `250ms`.

    Raises ValueError that says what would be right. A bool is refused: YAML reads `on` as one.
    """
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f"must be seconds or a duration such as 30s, 15m or 1h30m, got {value!r}")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"must be a finite duration of at least 0, got {value!r}")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float):
        return None if isinstance(value, bool) else float(value)
    text = value.strip() if isinstance(value, str) else ""
    if _NUMBER.fullmatch(text):  # environment variables hold nothing but text
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return the two largest units of a duration for people: `45s`, `3m20s`, `2h5m`, `4d1h`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [f"{days}d", f"{hours}h", f"{minutes}m", f"{secs}s"]
    first = next((index for index, part in enumerate(parts) if not part.startswith("0")), 3)
    shown = [part for part in parts[first : first + 2] if not part.startswith("0")]
    return "".join(shown) or "0s"


def counted(number: int, noun: str) -> str:
    """Return e.g. `1 node` and `2 nodes`, for nouns with a plural on s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_Written = Annotated[str, Field(pattern=r"^(\d+(\.\d+)?(ms|s|m|h|d))+$")]

Seconds = Annotated[float, BeforeValidator(parse_duration, json_schema_input_type=float | _Written)]
