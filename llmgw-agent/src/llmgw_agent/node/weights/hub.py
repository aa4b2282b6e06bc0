"""`hf:ORG/NAME@REV[/FILE-OR-GLOB]`: a repository of a model hub at one revision."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from llmgw.contracts.weights import FetchContext
from llmgw.errors import PermanentError, TransientError
from llmgw_agent.node.weights.faults import Gated

_REF = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@(?P<rev>[\w.-]+)(?:/(?P<pattern>.+))?"
)
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.gguf")
_REFUSED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5", "*.py")


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
        found = _REF.fullmatch(ref)
        if found is None:
            raise PermanentError(self.problem(ref) or ref)
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        secret = context.secrets.get(self.scheme)
        token = secret.reveal() if secret else None
        repo, revision, pattern = found["repo"], found["rev"], found["pattern"]
        try:
            info = HfApi(endpoint=self._endpoint, token=token).model_info(
                repo, revision=revision, files_metadata=True
            )
            wanted = _sizes(info.siblings or (), pattern)
            context.reserve(sum(wanted.values()))
            folder = snapshot_download(
                repo,
                revision=info.sha,
                allow_patterns=list(wanted),
                local_dir=context.folder / "files",
                token=token,
                endpoint=self._endpoint,
                tqdm_class=_progress(context, sum(wanted.values())),
            )
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
        _check(Path(folder), wanted)
        files = list(wanted)
        return Path(folder) / files[0] if pattern and len(files) == 1 else Path(folder)


def _transport_error() -> type[Exception]:
    """Return the root of errors of the HTTP library that the hub's client uses.

    It was requests, then httpx, then httpx2, and their errors are passed on untranslated.
    """
    from huggingface_hub import get_session

    library = sys.modules[type(get_session()).__module__.partition(".")[0]]
    error: type[Exception] = library.HTTPError
    return error


def _sizes(siblings: Any, pattern: str | None) -> dict[str, int]:
    from fnmatch import fnmatch

    sizes = {item.rfilename: int(item.size or 0) for item in siblings}
    chosen = {
        name: size
        for name, size in sizes.items()
        if (fnmatch(name, pattern) if pattern else any(fnmatch(name, want) for want in _WANTED))
        and not any(fnmatch(name, refused) for refused in _REFUSED)
    }
    if not any(name.endswith((".safetensors", ".gguf")) for name in chosen):
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

    done = 0

    class Reporter(tqdm):  # type: ignore[misc]
        """Counts bytes of all files together and prints nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal done
            if self.counts_bytes and n:
                done += int(n)
                context.report(done, total)
            return None

    return Reporter
