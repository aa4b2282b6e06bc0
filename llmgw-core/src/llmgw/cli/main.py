"""`llmgw`: finds the command, and turns every error into one message and an exit code.

0 done · 1 failed · 2 usage or settings · 130 interrupted. Data goes to stdout, the rest to
stderr.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import NoReturn

import click

from llmgw.cli.table import help_lines, load_command
from llmgw.domain.wording import spelled
from llmgw.errors import ConfigError, LlmgwError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are chosen."""

    # ruff: noqa: ARG002 - click's signatures

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(help_lines())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # The entry point's name is the command's, whatever its function is called.
        _, command, rest = super().resolve_command(ctx, args)
        return args[0], command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(help_lines().items()))


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"llmgw {metadata.version('llmgw-core')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: llmgw up",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def llmgw() -> None:
    """One OpenAI-compatible endpoint over every GPU machine you have."""


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = llmgw.main(arguments, prog_name="llmgw", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except ConfigError as error:
        return _say(error, EXIT_USAGE)
    except LlmgwError as error:
        return _say(error, EXIT_FAILED)
    except BrokenPipeError:
        # `llmgw … | head` is no failure; the interpreter would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code if isinstance(code, int) else 0


def _say(error: LlmgwError, code: int) -> int:
    click.echo(f"llmgw: {spelled(str(error))}", err=True)
    return code
