"""`llmgw service`: writes units, and prints the firewall."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from llmgw.cli.service import firewall as rules
from llmgw.cli.service.units import Kind, Unit, render
from llmgw.errors import ConfigError, Problem

UNITS = Path("/etc/systemd/system")


@click.group()
def service() -> None:
    """Run server and agent under systemd."""


@service.command()
@click.argument("kind", type=click.Choice([kind.value for kind in Kind]))
@click.option("--config", type=click.Path(path_type=Path), help="Default: below /etc/llmgw.")
@click.option("--user", default="llmgw", show_default=True, help="An unprivileged system user.")
@click.option("--program", type=click.Path(path_type=Path), help="Default: this very `llmgw`.")
@click.option("--directory", type=click.Path(path_type=Path), default=UNITS, show_default=True)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and write nothing.")
def install(
    kind: str,
    config: Path | None,
    user: str,
    program: Path | None,
    directory: Path,
    *,
    only_print: bool,
) -> None:
    """Write the unit of a server or an agent, for `systemctl enable --now`.

    \b
    Examples:
        llmgw service install server
        llmgw service install agent --print
    """
    unit = Unit(
        kind=Kind(kind),
        program=program or Path(sys.executable).parent / "llmgw",
        config=config or Path("/etc/llmgw") / ("llmgw.yaml" if kind == "server" else "agent.yaml"),
        user=user,
    )
    text = render(unit)
    if only_print:
        click.echo(text, nl=False)
        return
    path = directory / unit.file_name
    try:
        _replace(path, text)
    except OSError as error:
        problem = Problem(
            path=str(path),
            message=f"cannot be written: {error.strerror}; as root, or see it with --print",
        )
        raise ConfigError(f"llmgw service install {kind}", [problem]) from error
    click.echo(f"wrote {path}")
    click.echo(f"now: systemctl daemon-reload && systemctl enable --now {path.stem}", err=True)


@service.command()
@click.option(
    "--allow",
    multiple=True,
    metavar="ADDRESS|NETWORK",
    help="A router, or another node of the fleet; may be given again.",
)
@click.option("--ports", default="20000-29999", show_default=True, help="Of this node's engines.")
@click.option("--weights-port", default=8083, show_default=True, help="`weights.share_port`.")
def firewall(allow: tuple[str, ...], ports: str, weights_port: int) -> None:
    """Print nftables rules that let only routers and nodes reach this node's engines and weights.

    \b
    Example:
        llmgw service firewall --allow 10.0.0.1 --allow 10.0.1.0/24
    """
    first, _, last = ports.partition("-")
    if not (first.isdigit() and last.isdigit()):
        raise click.UsageError(f"--ports must be FIRST-LAST, got {ports!r}")
    text = rules.render(allow, ports=(int(first), int(last)), weights_port=weights_port)
    click.echo(text, nl=False)


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    os.chmod(beside, 0o644)  # noqa: PTH101 -- units are read by everybody's systemctl
    beside.replace(path)
