"""Every command in the documentation, and in our own hints, is one that there is, and is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from llmgw.cli.main import llmgw
from llmgw.testing.pages import commands_of, without_blocks

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("llmgw-*/README.md")])
SOURCES = sorted(ROOT.glob("llmgw-*/src/**/*.py"))
#: Programs that are not ours. What they do with their arguments is theirs.
OTHERS = {
    "curl",
    "envoy",
    "export",
    "nox",
    "pip",
    "pipx",
    "pytest",
    "python",
    "python3",
    "python3.11",
    "source",
    "ssh",
    "systemctl",
    "umask",
    "useradd",
    "uv",
}
OURS = {"llmgw-core", "llmgw-agent", "llmgw-engine-llamacpp", "llmgw-engine-vllm"}
OURS |= {"llmgw-engine-sglang", "nox"}
#: Folders with a package whose files are in a page.
WRITTEN = set(
    re.findall(r"^# ([\w-]+)/pyproject\.toml$", "".join(map(Path.read_text, PAGES)), re.MULTILINE)
)

_PAGES = "llmgw-agent/tests/pages"
#: Which test types what a page shows, as it stands: pages, commands, file; the first row that fits
#: counts. Where a comment says so, something else does what the command would do.
RUN_BY = (
    (r"docs/plugins.*", r"", "llmgw-core/tests/packages/try_plugin_guide.py"),
    (r"docs/engines/", r"", "llmgw-agent/tests/engines/test_pages.py"),
    (r"docs/install", r"(uv|pipx) ", "noxfile.py"),
    # All that CI runs: nobody can run it within itself.
    (r"README", r".* nox -s tests$", ".ci/run"),
    # Half an hour and more: what they say is what a session does.
    (r"docs/(faults|performance)", r"nox -s ", "noxfile.py"),
    (r"docs/airgap", r"", f"{_PAGES}/test_airgap.py"),
    (r"docs/ha", r"", f"{_PAGES}/test_ha.py"),
    (r"docs/(nodes|observability|operations|security|upgrades)", r"", f"{_PAGES}/test_operator.py"),
    (r"docs/install", r"", f"{_PAGES}/conftest.py"),
    (r"llmgw-agent/README", r"", f"{_PAGES}/test_operator.py"),
    (r"(.*README|docs/(first-run|configuration))", r"", f"{_PAGES}/test_newcomer.py"),
)


def words_of(command: str) -> list[str]:
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def parse(
    command: click.Command, name: str, words: list[str], parent: click.Context | None
) -> None:
    """Read words as click would, down to the last subcommand, and run nothing."""
    context = command.make_context(name, list(words), parent=parent)
    if isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
        chosen, below, rest = command.resolve_command(context, rest)
        assert below is not None
        parse(below, chosen or "", rest, context)


def check_whole(words: list[str]) -> None:
    program = Path(words[0]).name
    if program == "llmgw":
        parse(llmgw, "llmgw", ["12" if word == "VERSION" else word for word in words[1:]], None)
        return
    assert program in OTHERS, f"{program}: a program that nobody has heard of"
    if program in ("pip", "pipx", "uv") or words[1:3] == ["-m", "pip"]:
        for word in words:
            named = re.fullmatch(r"(\./)?([a-z][a-z-]+)(?:\[[a-z,]+\])?", word)
            if named and named[1]:
                assert named[2] in OURS | WRITTEN, word
            elif named and named[2].startswith(("llmgw", "nox")):
                assert named[2] in OURS, word
    for word in words[1:]:
        if program.startswith("python") and word.endswith(".py"):
            assert (ROOT / word).is_file(), word
    if "nox" in words and "-s" in words:
        session = words[words.index("-s") + 1]
        assert f"def {session}(" in (ROOT / "noxfile.py").read_text(), session


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    for command in commands_of(page.read_text()):
        for part in re.split(r" (?:&&|\|) ", re.sub(r" >>? \S+$", "", command)):
            if words := words_of(part):
                try:
                    check_whole(words)
                except click.ClickException as error:
                    raise AssertionError(f"{part}: {error.format_message()}") from None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_stands_where_nobody_looks_for_it(page: Path) -> None:
    """Only blocks of `console` are read; one that is indented is a picture or output."""
    for line in re.findall(r"^(?: {4}|\t)(.+)$", without_blocks(page.read_text()), re.MULTILINE):
        assert line.partition(" ")[0] not in OTHERS | {"llmgw"}, line


def test_commands_are_found_at_all() -> None:
    found = [command for page in PAGES for command in commands_of(page.read_text())]
    assert len(found) > 80
    assert any("nox -s up" in command for command in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_run_by_something(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    for command in commands_of(page.read_text()):
        found = [
            file
            for pages, words, file in RUN_BY
            if re.match(pages, name) and re.match(words, command)
        ]
        assert found, f"{command}: name the test that runs it"
        assert (ROOT / found[0]).is_file()
        assert not found[0].startswith(".ci") or command in (ROOT / found[0]).read_text()


def hints(text: str) -> Iterator[str]:
    """Commands in backticks, cut off where a pattern or more text begins."""
    for span in re.findall(r"`(llmgw [^`\n]+)`", text):
        if not span.startswith("llmgw {"):  # whichever command it is
            yield re.split(r" ?[\[|…(<>]", span)[0].strip()


@pytest.mark.parametrize("file", [*PAGES, *SOURCES], ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_that_is_only_named_is_there(file: Path) -> None:
    for hint in hints(file.read_text()):
        words = [re.sub(r"\{.*?\}", "x", word) for word in shlex.split(hint)[1:]]
        try:
            parse(llmgw, "llmgw", ["12" if word == "VERSION" else word for word in words], None)
        except (
            click.MissingParameter,
            click.BadOptionUsage,
            click.exceptions.NoArgsIsHelpError,
            click.exceptions.Exit,
        ):
            pass  # it is named without its arguments, or with --help
        except click.ClickException as error:
            raise AssertionError(f"{hint}: {error.format_message()}") from None
