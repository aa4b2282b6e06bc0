"""A server or router as a process: plugins and settings loaded, then run until it is stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw import logs
from llmgw.clock import SystemClock
from llmgw.config.loading import Loaded, load_server
from llmgw.domain.secret import Secret
from llmgw.plugins import Registry, load_registry
from llmgw.server.relay import RelayedRouter
from llmgw.server.running import run_until_stopped, run_with_signals
from llmgw.server.standalone import StandaloneRouter


def run_server(
    config: Path | None, flags: Mapping[str, object], *, allow_empty: bool = False
) -> None:
    """Run `llmgw server` until it is told to stop. Raises LlmgwError if it cannot start."""
    # Here, since it brings the store and its libraries, which a router must not have.
    from llmgw.server.app import Server

    newest = logs.LastLines()
    logging.getLogger().addHandler(newest)
    loaded, registry = _begin(config, flags, needs_work=True)
    server = Server(
        loaded,
        registry,
        clock=SystemClock(),
        load=lambda: load_server(config, os.environ, flags, installed=registry.installed),
        may_empty=allow_empty,
        log_lines=newest.lines,
    )
    run_until_stopped(lambda: run_with_signals(server))


def run_router(
    config: Path | None, flags: Mapping[str, object], *, servers: Sequence[str], token: Secret
) -> None:
    """Run `llmgw router` until it is told to stop. Raises LlmgwError if it cannot start."""
    loaded, registry = _begin(config, flags, needs_work=False)
    if loaded.settings.workers > 1:
        relayed = RelayedRouter(loaded, servers=servers, token=token, clock=SystemClock())
        run_until_stopped(lambda: run_with_signals(relayed))
        return
    router = StandaloneRouter(
        loaded,
        servers=servers,
        token=token,
        balancers=registry.balancers,
        engines=registry.engines,
        clock=SystemClock(),
    )
    run_until_stopped(lambda: run_with_signals(router))


def _begin(
    config: Path | None, flags: Mapping[str, object], *, needs_work: bool
) -> tuple[Loaded, Registry]:
    # Whatever this process writes is for its user only, tokens and tables above all.
    os.umask(0o077)
    logs.configure()
    registry = load_registry()
    loaded = load_server(
        config, os.environ, flags, installed=registry.installed, needs_work=needs_work
    )
    registry.require(loaded.settings.required_plugins)
    said = loaded.settings.log
    logs.configure(level=said.level, as_json=said.format == "json")
    return loaded, registry
