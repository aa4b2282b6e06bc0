"""Long work on a node: asked for, and watched while it goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

import click

from llmgw.ctl.render import plain
from llmgw.errors import LlmgwError

_LOOK_S = 1.0
_PLAIN_LOOK_S = 10.0  # where each word is a line that stays


def wait_for(
    work: Callable[[], str], look: Callable[[], str], *, every_s: float | None = None
) -> str:
    """Return what `work` returns, or raise what it raises; show meanwhile how far it is.

    look: returns it in a few words, "" if that is not known. On a terminal they replace each
    other, elsewhere each is a line. every_s: between looks; None: as suits the place.
    """
    done: Future[str] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised where the result is asked for
            done.set_exception(error)

    # A daemon: Ctrl-C ends the waiting at once. The node goes on, as the server does.
    threading.Thread(target=run, daemon=True).start()
    is_terminal = sys.stderr.isatty()
    pause_s = every_s or (_LOOK_S if is_terminal else _PLAIN_LOOK_S)
    shown = ""
    while not wait([done], timeout=pause_s).done:
        words = _words(look)
        if words and words != shown:
            _show(words, shown, is_terminal=is_terminal)
            shown = words
    if shown and is_terminal:
        click.echo(err=True)
    return done.result()


def _words(look: Callable[[], str]) -> str:
    try:
        return plain(look())
    except LlmgwError:
        return ""  # what the work itself says of it is what counts


def _show(words: str, before: str, *, is_terminal: bool) -> None:
    if is_terminal:
        click.echo(f"\r{words.ljust(len(before))}", nl=False, err=True)
    else:
        click.echo(words, err=True)
