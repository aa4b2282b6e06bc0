"""How one limit is divided among routers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.domain.shares import even_part


def divide(
    limit: int, wants: Mapping[str, int], before: Mapping[str, int | None]
) -> Mapping[str, int | None]:
    """Return each router's part; None: the even one, which needs no telling.

    wants: what each could use. before: the parts as last told. Parts that suffice are kept:
    moving one costs its loser what its buckets had saved up. Else wants are met from the
    smallest to the largest, each with at most an even part of what is then left, and the rest
    is spread evenly. The parts of an uneven division add up to `limit`.
    """
    even = even_part(limit, len(wants))
    if all(want <= even for want in wants.values()):
        return dict.fromkeys(wants)
    kept = {router: before.get(router) for router in wants}
    if all(want <= _or_even(kept[router], even) for router, want in wants.items()) and (
        sum(_or_even(part, even) for part in kept.values()) <= limit
    ):
        return kept
    parts: dict[str, int | None] = {}
    left = limit
    waiting = sorted(wants, key=lambda router: (wants[router], router))
    for at, router in enumerate(waiting):
        part = min(wants[router], left // (len(waiting) - at))
        parts[router] = part
        left -= part
    for at, router in enumerate(reversed(waiting)):  # who wants most first gets the odd ones
        more = -(-left // (len(waiting) - at))
        parts[router] = (parts[router] or 0) + more
        left -= more
    return parts


def may_grow_to(part: int, *, limit: int, least: int, held_elsewhere: int) -> int:
    """Return how much of its part a router may have at once.

    least: what it has all the same, if that is part of it. held_elsewhere: what the others may
    still use, until they have heard that it is less.
    """
    return max(min(part, least), min(part, limit - held_elsewhere), 1)


def _or_even(part: int | None, even: int) -> int:
    return even if part is None else part
