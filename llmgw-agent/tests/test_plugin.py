"""What this package hands over, and what importing it does not cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.clock import SystemClock
from llmgw.contracts.dispatch import DispatcherContext
from llmgw.errors import ConfigError
from llmgw.testing.trust import InMemoryTrust
from llmgw_agent import plugin


def _context(listen: str, folder: Path) -> DispatcherContext:
    return DispatcherContext(
        agent_listen=listen, state_dir=folder, trust=InMemoryTrust(), clock=SystemClock()
    )


def test_the_dispatcher_is_named_grpc(tmp_path: Path) -> None:
    (dispatcher,) = plugin.llmgw_dispatchers(_context("127.0.0.1:0", tmp_path))
    assert dispatcher.name == "grpc"


def test_a_bad_address_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="agent_listen"):
        plugin.llmgw_dispatchers(_context("::1:8082", tmp_path))


def test_probes_and_weight_sources_are_handed_over() -> None:
    assert {probe.vendor for probe in plugin.llmgw_hardware_probes()} >= {"nvidia", "amd"}
    assert {source.scheme for source in plugin.llmgw_weight_sources()} >= {"path", "pypi", "hf"}


@pytest.mark.parametrize("module", ["llmgw_agent.plugin", "llmgw_agent.command"])
def test_importing_what_is_looked_up_at_start_imports_no_grpc(module: str) -> None:
    code = f"import sys, {module}; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
