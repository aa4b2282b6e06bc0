"""Sets of requirements for versions of vLLM, locked by hash; each file says how far it was tried."""

from __future__ import annotations

import importlib

from llmgw.errors import PermanentError

#: Module by version, imported when it is asked for: most processes that load this plugin install nothing.
LOCKS = {"0.33.0": "vllm_0_33_0", "0.32.0-cpu": "vllm_cpu_0_32_0"}


def requirements(version: str) -> str:
    """Return the set for one version, to be installed without dependencies.

    Raises PermanentError naming the versions that are shipped, if this one is not.
    """
    module = LOCKS.get(version)
    if module is None:
        raise PermanentError(
            f"no requirements are shipped for vllm {version}, only for {', '.join(LOCKS)}: give "
            "the agent a lock of your own for it, or name a program of the node in `command`"
        )
    packages = importlib.import_module(f"{__name__}.{module}").PACKAGES
    return "".join(
        f"{name}=={number} --hash=sha256:{digest}\n" for name, number, digest in packages
    )
