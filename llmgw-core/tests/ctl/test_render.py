"""Texts for terminals: aligned, cuttable, and harmless whatever engines wrote."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

from llmgw.adminapi.explain import RefusalReply
from llmgw.ctl.render import age, plain, readable, refusal_tree, size, table


def test_columns_are_aligned_and_blanks_are_dashes() -> None:
    assert table(["A", "LONGER"], [["x", None], ["wide one", 5], [(), False], [[], 0]]) == (
        "A         LONGER\nx         -\nwide one  5\n-         no\n-         0"
    )


def test_marked_words_of_a_sentence_are_written_as_a_terminal_has_them() -> None:
    said = readable("see `llmgw ctl node gpu-01`, or drop `fabric`; a lone ` stays, \x1b not")
    assert said == "see llmgw ctl node gpu-01, or drop 'fabric'; a lone ` stays, \\x1b not"


def test_one_row_is_one_line() -> None:
    assert table(["A"], [["two\nlines\tand tabs"]]).count("\n") == 1


def test_on_a_terminal_the_sentence_at_the_end_is_cut_and_nothing_else() -> None:
    titles, row = ["REPLICA", "REASON"], ["llama-3.1-8b-1", "no node has 80 GiB free on one device"]
    assert (
        table(titles, [row], width=40).splitlines()[1] == "llama-3.1-8b-1  no node has 80 GiB free…"
    )
    assert table(titles, [row], width=200) == table(titles, [row])
    narrow = table(titles, [row], width=10).splitlines()[1]
    assert narrow == "llama-3.1-8b-1  no node has 80 GiB …"


_WIDTH = "from llmgw.ctl.session import terminal_width; print(terminal_width())"
#: What `watch` runs prints into a string first, which is as wide as the terminal.
_WATCHED = """\
import contextlib, sys
from llmgw.ctl.live import Screen
from llmgw.ctl.session import terminal_width
with contextlib.redirect_stdout(Screen()) as screen:
    print(terminal_width())
sys.stdout.write(screen.getvalue())
"""


@pytest.mark.parametrize("code", [_WIDTH, _WATCHED], ids=["printed", "watched"])
def test_the_width_is_the_terminal_s_and_there_is_none_for_a_pipe(code: str) -> None:
    ask = [sys.executable, "-c", code]
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    assert subprocess.run(ask, env=env, capture_output=True, check=True).stdout == b"None\n"
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
        subprocess.run(ask, env=env, stdout=theirs, check=True)
        assert os.read(ours, 100) == b"97\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "\x1b]0;title\x07", "a\rb", "\x9b2J", "x\u202egnp.exe", "\x00"]
)
def test_escapes_are_shown_and_do_nothing(text: str) -> None:
    """C057"""
    shown = plain(text)
    assert all(character.isprintable() for character in shown)


def test_ages_and_sizes_have_one_unit_that_fits() -> None:
    assert (age(90.0, 100.0), age(160.0, 100.0), age(None, 1.0)) == ("10s", "in 1m", "-")
    assert (size(512), size(1536), size(3 * 1024**3), size(None)) == (
        "512 B",
        "1.5 KiB",
        "3.0 GiB",
        "-",
    )


def test_a_tree_shows_code_figures_and_way_out_below_each_other() -> None:
    leaf = RefusalReply(
        code="memory",
        sentence="too small",
        node="gpu-01",
        need="80 GiB",
        have="40 GiB",
        hint="ask for less",
    )
    tree = RefusalReply(code="no_node", sentence="no node fits", parts=(leaf,))
    assert refusal_tree([tree]) == [
        "no node fits  [no_node]",
        "  too small  [memory]  (node gpu-01)",
        "    needs 80 GiB, has 40 GiB",
        "    way out: ask for less",
    ]


def test_a_tree_says_nothing_twice() -> None:
    leaf = RefusalReply(
        code="too_few",
        sentence="needs 8 devices, n has 2",
        need="8 devices",
        have="2",
        hint="split",
    )
    other = leaf.model_copy(update={"hint": "label more nodes"})
    tree = RefusalReply(code="unplaced", sentence="fits nowhere", hint="split", parts=(leaf, other))
    assert refusal_tree([tree]) == [
        "fits nowhere  [unplaced]",
        "  way out: split",
        "  needs 8 devices, n has 2  [too_few]",
        "  needs 8 devices, n has 2  [too_few]",
        "    way out: label more nodes",
    ]
