"""What the commands share: the client, made late; output as text or as the reply itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmgw.ctl.target import Wishes, find_target

if TYPE_CHECKING:
    from llmgw.adminapi.reply import Reply
    from llmgw.ctl.client import Client

T = TypeVar("T", bound="Reply")


class Session:
    """One run of `llmgw ctl`."""

    def __init__(
        self, wishes: Wishes, *, as_json: bool, connect: Callable[[Wishes], Client] | None = None
    ) -> None:
        self.wishes = wishes
        self.as_json = as_json
        self._connect = connect or _connect
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Return the client. Where it goes is found now, so that `contexts` can mend a bad one."""
        if self._client is None:
            self._client = self._connect(self.wishes)
        return self._client

    def show(self, raw: str, text: Callable[[], str]) -> None:
        """Print the API's reply untouched with `--json`, else the text made of it."""
        click.echo(raw if self.as_json else text())

    def show_reply(self, raw: str, kind: type[T], text: Callable[[T], str]) -> None:
        """Likewise, with a text made of the reply's values."""
        from llmgw.ctl.client import parse

        self.show(raw, lambda: text(parse(kind, raw)))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class CtlCommand(click.Command):
    """A command with `--json`, where it shows a reply, and with examples at the end of its help."""

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), has_reply: bool = True, **options: Any
    ) -> None:
        json_option = click.Option(
            ["--json", "json_here"],
            is_flag=True,
            expose_value=False,
            callback=_ask_json,
            help="Print the API's reply untouched.",
        )
        if has_reply:
            options["params"] = [*(options.get("params") or ()), json_option]
        super().__init__(*args, **options)
        self.examples = tuple(examples)

    # ruff: noqa: ARG002 - click's signatures

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write_text(line)


class ListingGroup(click.Group):
    """A group that lists where no command is named: `keys`, `weights gpu-01`, `keys --json`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        # A list of everything takes no name, so a word there is a command that is misspelt.
        is_all = not any(isinstance(it, click.Argument) for it in self.commands["list"].params)
        is_misspelt = args and is_all and not args[0].startswith("-")
        # While a shell completes, the word to come may still name one.
        if not (is_named or is_misspelt or ctx.resilient_parsing):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def _ask_json(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    session = ctx.find_object(Session)
    if wanted and session is not None:
        session.as_json = True


def terminal_width() -> int | None:
    """Return how wide the terminal is that stdout goes to; None: it goes elsewhere."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _connect(wishes: Wishes) -> Client:
    from llmgw.ctl.client import Client

    return Client(find_target(wishes, os.environ), tell=partial(click.echo, err=True))


pass_session = click.make_pass_decorator(Session)
