"""Requests as broken, careless and hostile clients send them: any number, the same for one seed.

Each is a sound request that was changed in one to three ways: its framing, its head, its body,
or the way it is cut into packets. Some hide a second request where a lenient parser would find
it. `strict_answers` reads what comes back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from llmgw.testing.malformed.bodies import BODIES
from llmgw.testing.malformed.draft import Draft, sound_request
from llmgw.testing.malformed.heads import HEADS
from llmgw.testing.malformed.smuggling import HIDDEN, SMUGGLING

__all__ = ["HIDDEN", "Malformed", "malformed"]

_CHANGES = (*HEADS, *BODIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """What one connection sends."""

    number: int
    pieces: tuple[bytes, ...]  #: packets
    changes: tuple[str, ...]  #: what was done, for the report of a failure
    meant: int  #: how many requests an engine may see of it
    is_head: bool = False  #: its answer has no body


def malformed(seed: int, number: int, key: str, model: str = "demo") -> Malformed:
    """Return the `number`th request of a seed. key: a right one, for requests that carry it."""
    # Kept apart from the seed of others by its text.
    drawn = random.Random(f"{seed}/{number}")  # noqa: S311
    draft = sound_request(drawn, number, key, model)
    if drawn.random() < 0.25:
        _apply(drawn.choice(SMUGGLING), draft)
    else:
        for change in drawn.sample(_CHANGES, drawn.choice((1, 1, 2, 3))):
            _apply(change, draft)
    data = draft.wire()
    return Malformed(
        number=number,
        pieces=_packets(drawn, data),
        changes=tuple(draft.changes),
        meant=draft.meant,
        is_head=draft.method == b"HEAD",
    )


def _apply(change: Callable[[Draft], None], draft: Draft) -> None:
    draft.changes.append(change.__name__)
    change(draft)


def _packets(drawn: random.Random, data: bytes) -> tuple[bytes, ...]:
    cuts = drawn.choice((0, 0, 0, 1, 2, 7))
    places = sorted(drawn.randrange(len(data) + 1) for _ in range(cuts))
    pieces = [
        data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)
    ]
    return tuple(piece for piece in pieces if piece)
