"""Pages of a list that is in memory: by the key of the last item seen, so that none is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from pydantic import Field

from llmgw.adminapi.reply import Request

T = TypeVar("T")

MOST = 1000


class PageQuery(Request):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=MOST)] = MOST
    after: Annotated[str, Field(max_length=300)] | None = None
    """`next` of the page before."""


def page(
    items: Iterable[T], key: Callable[[T], str], query: PageQuery
) -> tuple[tuple[T, ...], str | None]:
    """Return the items of one page, ordered by key, and `next`."""
    ordered = sorted(items, key=key)
    if query.after is not None:
        ordered = [item for item in ordered if key(item) > query.after]
    shown = ordered[: query.limit]
    return tuple(shown), key(shown[-1]) if len(ordered) > len(shown) else None
