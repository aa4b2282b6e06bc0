"""`llmgw server`: the flags of the one endpoint. What runs is `llmgw.server`'s business."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from llmgw.config.endpoint_flag import FORM, parse_endpoint

#: Flags that stand for one setting each: (flag, dotted path, kind of value, help).
_SETTINGS = (
    ("--state-dir", "state_dir", "PATH", "Folder that everything lies below."),
    ("--listen", "listen", "HOST:PORT", "Where clients come; port 0 is chosen by the system."),
    ("--admin-listen", "admin_listen", "HOST:PORT", "Where operators come."),
    ("--agent-listen", "agent_listen", "HOST:PORT", "Where agents come, or unix:/PATH."),
    ("--store-url", "store.url", "URL", "Database of several servers, or another file."),
    ("--workers", "workers", "N", "Router processes that share the port."),
    ("--log-level", "log.level", "LEVEL", "debug, info, warning or error."),
    ("--log-format", "log.format", "FORMAT", "text or json."),
)


def _parameter(path: str) -> str:
    return path.replace(".", "_")


def with_settings(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the flags that stand for settings, but for those `left_out` by dotted path."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for flag, path, kind, words in reversed(_SETTINGS):
            if path not in left_out:
                command = click.option(flag, _parameter(path), metavar=kind, help=words)(command)
        command = click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            envvar="LLMGW_CONFIG",
            help="YAML or TOML file.",
        )(command)
        return click.option(
            "--insecure-bind",
            is_flag=True,
            help="Allow addresses off this machine without TLS and keys.",
        )(command)

    return decorate


def flags_of(given: Mapping[str, Any], *, insecure_bind: bool) -> dict[str, object]:
    """Return the settings that were given as flags, by dotted path."""
    flags = {
        path: given[_parameter(path)]
        for _, path, _, _ in _SETTINGS
        if given.get(_parameter(path)) is not None
    }
    if insecure_bind:
        flags["auth.insecure_bind"] = True
    return flags


@click.command()
@with_settings()
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar=FORM,
    help="An engine that already runs; may be given again.",
)
@click.option(
    "--allow-empty", is_flag=True, help="A file that turns empty or vanishes removes its models."
)
def server(
    config_file: Path | None,
    endpoints: tuple[str, ...],
    insecure_bind: bool,
    allow_empty: bool,
    **given: Any,
) -> None:
    """Run the control plane and a router: the one endpoint.

    Flags beat LLMGW_… variables, which beat the file. SIGHUP reads the file again. SIGTERM
    ends it in order; a second one at once. Engines on their nodes go on running.

    \b
    Examples:
        llmgw server --config llmgw.yaml
        llmgw server --endpoint e1=http://127.0.0.1:8000=llama3,default
    """
    from llmgw.server.process import run_server  # `--help` needs none of it

    flags = flags_of(given, insecure_bind=insecure_bind)
    if endpoints:
        try:
            flags["endpoints"] = [parse_endpoint(text) for text in endpoints]
        except ValueError as error:
            raise click.UsageError(f"--endpoint {error}") from error
    run_server(config_file, flags, allow_empty=allow_empty)
