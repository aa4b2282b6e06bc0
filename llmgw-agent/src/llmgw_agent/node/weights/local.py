"""`path:/ABS`: files that are on the node already, under one of the roots that its owner named."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from llmgw.contracts.weights import FetchContext
from llmgw.errors import PermanentError
from llmgw_agent.node.weights.below import open_below
from llmgw_agent.node.weights.faults import Corrupt
from llmgw_agent.node.weights.verify import is_refused_name


class LocalSource:
    """Opens nothing for the engine and copies nothing: it only proves what the path leads to."""

    scheme = "path"

    def problem(self, ref: str) -> str | None:
        path = ref.removeprefix("path:")
        if not path.startswith("/"):
            return f"must be path:/ABSOLUTE, got {ref!r}"
        if any(part in (".", "..") for part in path.split("/")):
            return f"must not have '.' or '..' in it, got {ref!r}"
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        path = Path(ref.removeprefix("path:"))
        root = next((root for root in context.roots if path.is_relative_to(root)), None)
        if root is None:
            roots = ", ".join(str(root) for root in context.roots) or "none"
            raise PermanentError(
                f"{path} lies under none of this node's weights roots ({roots}): put it there, or "
                "start the agent with --weights-root and the folder that holds weights alone"
            )
        mode = _mode(root, path)
        if stat.S_ISREG(mode):
            _check_file(path)
        elif stat.S_ISDIR(mode):
            _check_folder(path)
        else:
            raise PermanentError(f"{path} is neither a file nor a folder")
        return path


def _mode(root: Path, path: Path) -> int:
    """Return what lies at `path`, reached from `root` without following any link."""
    try:
        found = open_below(root, path.relative_to(root).parts)
    except FileNotFoundError:
        raise PermanentError(f"{path} does not exist on this node") from None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        why = "is, or lies behind, a link" if is_link else str(error.strerror)
        raise PermanentError(f"{path} {why}: give the path that it leads to") from error
    try:
        return os.fstat(found).st_mode
    finally:
        os.close(found)


def _check_file(path: Path) -> None:
    if is_refused_name(path.name):
        raise PermanentError(f"{path} is a pickle, which can run code: use safetensors or GGUF")
    if path.suffix == ".gguf":
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise Corrupt(f"{path} is no GGUF file: it does not begin with GGUF")


def _check_folder(path: Path) -> None:
    names = [item.name for item in path.iterdir()]
    if not any(name.endswith((".safetensors", ".gguf")) for name in names):
        raise PermanentError(f"{path} holds neither safetensors nor GGUF files")
