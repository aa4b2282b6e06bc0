"""Where model weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

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
    """One scheme, e.g. `hf`. Runs on a thread, and may have more of its own.

    `report` may be called by any of them; an exception out of it cancels the fetch.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProof:
    """What a source says that one of its files is. None: it does not say."""

    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None  #: of `blob SIZE\0` and the content, as git names small files


@runtime_checkable
class Proves(Protocol):
    """The source can say what its files are, so that they may come from anywhere.

    Without it a node believes what the fleet says of weights that it takes from another node.
    """

    def proof(self, ref: str, context: FetchContext) -> Mapping[str, FileProof]:
        """Return every file that `fetch` would leave, by its path below `context.folder`.

        Raises as `fetch` does. Takes one question at most, and no download.
        """
        ...
