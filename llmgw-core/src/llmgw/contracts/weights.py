"""Where model weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmgw.domain.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchContext:
    """What a source may use while it fetches."""

    folder: Path  #: on the cache's own file system; kept between attempts for resuming
    report: Callable[[float, float | None], None]  #: (bytes done, bytes in all or None)
    reserve: Callable[
        [int], None
    ]  #: claim bytes of disk beforehand; raises PermanentError if short
    secrets: Mapping[str, Secret]  #: tokens from the agent's settings, by source
    roots: tuple[Path, ...]  #: folders of the node that `path:` may name
    networks: tuple[str, ...] = ()  #: not public, but allowed to fetch from, e.g. `10.0.0.0/8`


class WeightSource(Protocol):
    """One scheme, e.g. `hf`. Runs on a thread; cancelled by an exception out of `report`."""

    @property
    def scheme(self) -> str: ...

    def problem(self, ref: str) -> str | None:
        """Return why this ref can never be fetched, e.g. a missing hash; None if it may. No I/O."""
        ...

    def fetch(self, ref: str, context: FetchContext) -> Path:
        """Return the verified file or folder, under `context.folder` unless the source owns it.

        Raises TransientError (network), PermanentError (missing, gated, corrupt, no room).
        """
        ...
