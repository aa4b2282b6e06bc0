"""`path:/ABS`: files that are on the node already, under one of the roots that its owner named."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from llmgw.contracts.weights import FetchContext
from llmgw.errors import PermanentError
from llmgw_agent.node.weights.faults import Corrupt

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


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
                f"{path} lies under none of this node's weights roots ({roots}): start the agent "
                f"with --weights-root {path.parent}"
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
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    here = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for part in path.relative_to(root).parts:
            below = os.open(part, flags, dir_fd=here)
            os.close(here)
            here = below
        return os.fstat(here).st_mode
    except FileNotFoundError:
        raise PermanentError(f"{path} does not exist on this node") from None
    except OSError as error:
        why = "is, or lies behind, a link" if error.errno == 40 else str(error.strerror)  # ELOOP
        raise PermanentError(f"{path} {why}: give the path that it leads to") from error
    finally:
        os.close(here)


def _check_file(path: Path) -> None:
    if path.suffix in _PICKLES:
        raise PermanentError(f"{path} is a pickle, which can run code: use safetensors or GGUF")
    if path.suffix == ".gguf":
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise Corrupt(f"{path} is no GGUF file: it does not begin with GGUF")


def _check_folder(path: Path) -> None:
    names = [item.name for item in path.iterdir()]
    if not any(name.endswith((".safetensors", ".gguf")) for name in names):
        raise PermanentError(f"{path} holds neither safetensors nor GGUF files")
