"""A machine of a user's, for engines that take minutes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.site import Running, Site
from llmgw.testing.tiny_hf import write_tiny_hf
from llmgw.testing.wires import Wires, can_make_wires

# Ranks that share this folder take each other for processes of one machine, with one loopback.
OWN_SHM = 'mount -t tmpfs own /dev/shm && exec "$@"'
VLLM = "0.32.0-cpu"  #: of the sets that the adapter ships, the one that needs no GPU


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    for log in sorted(tmp_path.glob("*.log")):  # shown by pytest where the test failed
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")  # noqa: T201


@pytest.fixture
def wires() -> Iterator[Wires]:
    """Two machines, `a` and `b`, and the hub that the test and its server are on."""
    if not can_make_wires():
        pytest.skip("needs root, iproute2 and nftables")
    made = Wires(f"le{os.getpid()}", ("a", "b"))
    try:
        made.make()
        yield made
    finally:
        made.remove()


@pytest.fixture
def start_on(
    wires: Wires, site: Site, share_engines: Callable[[str], None]
) -> Callable[..., Running]:
    """Start the agent of machine `a` or `b`, which has devices and ports of its own."""

    def start(machine: str, weights: Path, *, prefix: tuple[str, ...] = ()) -> Running:
        share_engines(machine)
        return site.agent(
            machine,
            *("--machine", machine, "--fabric", "lab=one", "--weights-root", str(weights.parent)),
            *("--data-address", wires.address(machine)),
            server=wires.hub(machine),
            join=site.ctl("join-token", "create")["secret"],
            prefix=(*wires.inside(machine), "sh", "-c", OWN_SHM, "sh", *prefix),
        )

    return start


@pytest.fixture
def ready_ranks(site: Site) -> Callable[[], dict[int, dict[str, Any]] | None]:
    """Both ranks of a replica over two nodes, by number, once both are ready."""

    def look() -> dict[int, dict[str, Any]] | None:
        ready = [shard for shard in site.shards().values() if shard["state"] == "ready"]
        return {shard["rank"]: shard for shard in ready} if len(ready) == 2 else None

    return look


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, in a folder of its own below a root."""
    if given := os.environ.get("LLMGW_VLLM_MODEL"):
        return Path(given)
    return write_tiny_hf(tmp_path_factory.mktemp("weights") / "tiny")


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all agents of this run have their engines, so that each is installed once."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture
def share_engines(site: Site, engines: Path) -> Callable[[str], None]:
    """Let the agent of this name find, and install, engines where the others do."""

    def share(node: str) -> None:
        folder = site.home / node / "engines"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.symlink_to(engines)

    return share


@pytest.fixture
def vllm(tiny: Path) -> dict[str, Any]:
    """A profile of vLLM: the site's own, or else one that the agent installs."""
    profile: dict[str, Any] = {
        "engine": "vllm",
        "weights": f"path:{tiny}",
        "options": {
            "max_model_len": 512,
            "max_num_seqs": 4,
            "enforce_eager": True,
            "cpu_kvcache_space": 1,
        },
    }
    python = os.environ.get("LLMGW_VLLM_PYTHON")
    if not python:
        return {**profile, "version": VLLM}
    # Not the environment's own `vllm`, which does not know itself where it is the CPU wheel.
    start = importlib.util.find_spec("llmgw_engine_vllm.serve")
    assert start is not None
    return {**profile, "command": [python, "-I", start.origin]}
