"""`hf:ORG/NAME@REV[/FILE-OR-GLOB]`: a repository of a model hub at one revision."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmgw.contracts.weights import FetchContext, FileProof
from llmgw.errors import PermanentError, TransientError
from llmgw_agent.node.weights.faults import Gated
from llmgw_agent.node.weights.verify import is_refused_name

_REF = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@(?P<rev>[\w.-]+)(?:/(?P<pattern>.+))?"
)
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.gguf")
_FOLDER = "files"
_PROOF_LIMIT_S = 5.0  # a hub that cannot be reached must not hold up a transfer between nodes


class HubSource:
    """Fetches by huggingface_hub, which resumes by itself and is imported only then."""

    scheme = "hf"

    def __init__(self, endpoint: str | None = None) -> None:
        """endpoint: base URL of the hub; None: `HF_ENDPOINT`, or the public one."""
        self._endpoint = endpoint

    def problem(self, ref: str) -> str | None:
        found = _REF.fullmatch(ref)
        if found is None:
            return f"must be hf:ORG/NAME@REVISION or hf:ORG/NAME@REVISION/FILE, got {ref!r}"
        pattern = found["pattern"] or ""
        if any(part in ("", ".", "..") for part in pattern.split("/")) and pattern:
            return f"the file must be a plain path inside the repository, got {pattern!r}"
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        found = self._read(ref)
        with _translated(found):
            from huggingface_hub import snapshot_download

            info = self._info(found, context)
            wanted = _chosen(info.siblings or (), found["pattern"])
            sizes = {item.rfilename: int(item.size or 0) for item in wanted}
            context.reserve(sum(sizes.values()))
            folder = Path(
                snapshot_download(
                    found["repo"],
                    revision=info.sha,
                    allow_patterns=list(sizes),
                    local_dir=context.folder / _FOLDER,
                    token=self._token(context),
                    endpoint=self._endpoint,
                    tqdm_class=_progress(context, sum(sizes.values())),
                )
            )
        _check(folder, sizes)
        # When each file came, which is another time on each node: only good for resuming.
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        files = list(sizes)
        return folder / files[0] if found["pattern"] and len(files) == 1 else folder

    def proof(self, ref: str, context: FetchContext) -> Mapping[str, FileProof]:
        found = self._read(ref)
        with _translated(found):
            info = self._info(found, context, limit_s=_PROOF_LIMIT_S)
            return {
                f"{_FOLDER}/{item.rfilename}": FileProof(
                    size=item.size,
                    sha256=item.lfs.sha256 if item.lfs else None,
                    git_sha1=None if item.lfs else item.blob_id,
                )
                for item in _chosen(info.siblings or (), found["pattern"])
            }

    def _read(self, ref: str) -> re.Match[str]:
        found = _REF.fullmatch(ref)
        if found is None:
            raise PermanentError(self.problem(ref) or ref)
        return found

    def _info(
        self, found: re.Match[str], context: FetchContext, limit_s: float | None = None
    ) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self._endpoint, token=self._token(context)).model_info(
            found["repo"], revision=found["rev"], files_metadata=True, timeout=limit_s
        )

    def _token(self, context: FetchContext) -> str | None:
        secret = context.secrets.get(self.scheme)
        return secret.reveal() if secret else None


@contextmanager
def _translated(found: re.Match[str]) -> Iterator[None]:
    """Import the hub's library and turn its errors into ours."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repo, revision = found["repo"], found["rev"]
    try:
        yield
    except GatedRepoError as error:
        raise Gated(
            f"{repo} is gated: accept its terms on the hub and give the agent a token of that "
            "account (LLMGW_AGENT__WEIGHTS__HUB_TOKEN)"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise PermanentError(
            f"the hub has no {repo} at {revision}, or not for this node's token"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, _transport_error()) as error:
        raise TransientError(f"the model hub cannot be reached for {repo}: {error}") from error


def _transport_error() -> type[Exception]:
    """Return the root of errors of the HTTP library that the hub's client uses.

    It was requests, then httpx, then httpx2, and their errors are passed on untranslated.
    """
    from huggingface_hub import get_session

    library = sys.modules[type(get_session()).__module__.partition(".")[0]]
    error: type[Exception] = library.HTTPError
    return error


def _chosen(siblings: Iterable[Any], pattern: str | None) -> list[Any]:
    """Return the files that an engine needs, and that run no code."""
    from fnmatch import fnmatch

    chosen = [
        item
        for item in siblings
        if not is_refused_name(name := item.rfilename)
        and (fnmatch(name, pattern) if pattern else any(fnmatch(name, want) for want in _WANTED))
    ]
    if not any(item.rfilename.endswith((".safetensors", ".gguf")) for item in chosen):
        raise PermanentError(
            "the repository has neither safetensors nor GGUF files"
            + (f" that match {pattern!r}" if pattern else "")
        )
    return chosen


def _check(folder: Path, wanted: dict[str, int]) -> None:
    for name, size in wanted.items():
        path = folder / name
        if not path.is_file() or (size and path.stat().st_size != size):
            raise TransientError(f"{name} did not arrive whole")


def _progress(context: FetchContext, total: int) -> type:
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    counting = threading.Lock()  # files come in several threads
    counts: dict[int, int] = {}

    class Reporter(tqdm):  # type: ignore[misc]
        """Counts bytes of all files together and prints nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self.counts_bytes and n:
                with counting:
                    counts[id(self)] = counts.get(id(self), 0) + int(n)
                    # One bar may count what arrives and another what is written of the same.
                    done = min(max(counts.values()), total)
                context.report(done, total)
            return None

    return Reporter
