"""Figures that were measured once and are better than an estimate: memory, times to wake."""

from __future__ import annotations

import json
from collections.abc import Mapping

import sqlalchemy as sa

from llmgw.clock import Clock
from llmgw.store.database import Database
from llmgw.store.schema import learned


class LearnedFigures:
    """Numbers by key; what a key and its figures mean is the control plane's business."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def all(self) -> Mapping[str, Mapping[str, float]]:
        """Return everything that was learned, by key."""
        return self._database.read(
            lambda connection: {
                row.key: json.loads(row.figures_json)
                for row in connection.execute(sa.select(learned))
            }
        )

    def put(self, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the figures of the given keys."""
        at = self._clock.wall()

        def work(connection: sa.Connection) -> None:
            connection.execute(learned.delete().where(learned.c.key.in_(list(figures))))
            connection.execute(
                learned.insert(),
                [
                    {"key": key, "figures_json": json.dumps(dict(values)), "at": at}
                    for key, values in figures.items()
                ],
            )

        if figures:
            self._database.write(work, fenced=True)
