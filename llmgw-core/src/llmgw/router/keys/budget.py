"""Tokens of a key per day and month. `wall` is Unix seconds, since budgets follow the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from llmgw.domain.keys import KeyLimits, KeySpend


def day_of(wall: float) -> int:
    """Return days since 1970, UTC."""
    return int(wall // 86400)


def month_of(wall: float) -> int:
    """Return months since year 0, UTC."""
    date = datetime.fromtimestamp(wall, UTC)
    return date.year * 12 + date.month - 1


class Budget:
    """What one key has spent: the store's sum, plus what this router has seen since.

    What was used between two sums is counted until the second next one, since it may or may
    not be in the next. So for a moment the figure may be too high, and it is never too low by
    more than the other routers use between two sums.
    """

    __slots__ = ("_carried", "_day_end", "_day_tokens", "_month", "_month_tokens", "_since")

    def __init__(self) -> None:
        self._month = 0
        self._begin_day(0, 0)
        self._month_tokens = 0
        self._carried = 0
        self._since = 0

    def learn(self, spend: KeySpend) -> None:
        """Take the store's newest sum."""
        self._begin_day(spend.day, spend.day_tokens)
        self._month, self._month_tokens = spend.month, spend.month_tokens
        self._carried, self._since = self._since, 0

    def spend(self, tokens: int, wall: float) -> None:
        if wall >= self._day_end:
            self._turn(wall)
        self._since += tokens

    def exceeded_until(self, limits: KeyLimits, wall: float) -> float | None:
        """Return after how many seconds the key may be used again; None if it may now."""
        if limits.tokens_per_day is None and limits.tokens_per_month is None:
            return None
        if wall >= self._day_end:
            self._turn(wall)
        own = self._carried + self._since
        month_limit = limits.tokens_per_month
        if month_limit is not None and self._month_tokens + own >= month_limit:
            first = datetime.fromtimestamp(wall, UTC).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            return (first + timedelta(days=32)).replace(day=1).timestamp() - wall
        day_limit = limits.tokens_per_day
        if day_limit is not None and self._day_tokens + own >= day_limit:
            return (day_of(wall) + 1) * 86400.0 - wall
        return None

    def _turn(self, wall: float) -> None:
        """Begin a new day, and perhaps a month. The clock going back begins none: spent is spent."""
        self._begin_day(day_of(wall), 0)
        if (month := month_of(wall)) > self._month:
            self._month, self._month_tokens = month, 0
        else:
            self._month_tokens += self._carried + self._since
        self._carried = self._since = 0

    def _begin_day(self, day: int, tokens: int) -> None:
        self._day_tokens = tokens
        self._day_end = (day + 1) * 86400.0
