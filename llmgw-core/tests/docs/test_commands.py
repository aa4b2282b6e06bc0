"""Every command in the documentation, and in our own hints, is one that there is.

In blocks of `console` a line that begins with `$` is a command, and all else is output. A block that
is indented holds commands if its first line is one, else it is a picture or output. What runs against a
cluster is run by the agent's e2e tests.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from llmgw.cli.main import llmgw

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("llmgw-*/README.md")])
SOURCES = sorted(ROOT.glob("llmgw-*/src/**/*.py"))
#: Programs that are not ours. What they do with their arguments is theirs.
OTHERS = {
    "curl",
    "export",
    "pip",
    "pipx",
    "pytest",
    "python",
    "python3",
    "python3.11",
    "source",
    "ssh",
    "systemctl",
    "useradd",
    "uv",
}
KNOWN = OTHERS | {"llmgw"}
OURS = {"llmgw-core", "llmgw-agent", "llmgw-engine-llamacpp", "llmgw-engine-vllm"}
OURS |= {"llmgw-engine-sglang", "nox"}
#: Folders with a package whose files are in a page.
WRITTEN = set(
    re.findall(r"^# ([\w-]+)/pyproject\.toml$", "".join(map(Path.read_text, PAGES)), re.MULTILINE)
)

_SCRIPTS = "llmgw-core/tests/packages"
#: Which test runs what a page shows: pages, commands, file; the first row that fits counts. As it
#: stands, unless a comment says otherwise.
RUN_BY = (
    (r"docs/.*", r"llmgw ctl ", "llmgw-agent/tests/e2e/test_docs.py"),
    (r"docs/plugins.*", r"", f"{_SCRIPTS}/try_plugin_guide.py"),
    (r"docs/airgap", r"python3 |/opt/", f"{_SCRIPTS}/try_without_internet.py"),
    (r"docs/install", r"(?!uv |pipx )", f"{_SCRIPTS}/try_two_machines.py"),
    (r"docs/configuration", r"llmgw ", "llmgw-agent/tests/e2e/test_docs.py"),
    (r"docs/first-run", r"curl |python ", "llmgw-agent/tests/e2e/test_docs.py"),
    # With other addresses, names and files: what they need is a fleet of the test's own.
    (
        r"docs/(nodes|airgap)|llmgw-agent/",
        r"llmgw (server|agent)|export ",
        f"{_SCRIPTS}/try_two_machines.py",
    ),
    (r"docs/nodes", r"useradd|systemctl|llmgw service install", f"{_SCRIPTS}/try_two_machines.py"),
    (r"docs/nodes", r"llmgw service firewall", "llmgw-agent/tests/node/test_settings.py"),
    (r"docs/ha", r"llmgw (store|server|router)", "llmgw-agent/tests/ha/conftest.py"),
    (r"docs/upgrades", r"llmgw (plugins|config)", f"{_SCRIPTS}/try_plugin_guide.py"),
    (r"llmgw-core/README", r"llmgw server", f"{_SCRIPTS}/try_core_alone.py"),
    (r".*", r"llmgw up", "llmgw-agent/tests/e2e/test_up.py"),
    # By nox itself: it builds the packages, and installs them with pip, together and as a tool.
    (r".*", r"(pip|pipx|uv|python3 -m pip) ", "noxfile.py"),
    # They fetch an engine of gigabytes, or need one: `nox -s engines`, where the machine has it.
    (r"docs/engines/", r".*(pytest|--require-hashes) ", "llmgw-agent/tests/engines/conftest.py"),
)


def fenced(text: str, language: str) -> Iterator[str]:
    yield from re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def without_fences(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[str]:
    """Every command of a page, continued lines joined."""
    for block in fenced(text, "console"):
        yield from re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE)
    for block in re.findall(r"\n\n((?:    .*\n|\n)+)", without_fences(text)):
        if not (words := words_of(block.lstrip().partition("\n")[0])) or words[0] not in KNOWN:
            continue
        joined = re.sub(r'"\n(.*?)"\n', '" "\n', block.replace("\\\n", " "), flags=re.DOTALL)
        yield from (line.strip() for line in joined.splitlines() if line.strip())


def words_of(command: str) -> list[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        words = command.split()
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
    for command in commands(page.read_text()):
        for part in re.split(r" (?:&&|\||>>?) ", command):
            words = words_of(part)
            if words and not words[0].endswith((".txt", ".json")):
                try:
                    check_whole(words)
                except click.ClickException as error:
                    raise AssertionError(f"{part}: {error.format_message()}") from None


def test_commands_are_found_at_all() -> None:
    found = [command for page in PAGES for command in commands(page.read_text())]
    assert len(found) > 80
    assert any("nox -s up" in command for command in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_run_by_something(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    for command in commands(page.read_text()):
        found = [
            file
            for pages, words, file in RUN_BY
            if re.match(pages, name) and re.match(words, command)
        ]
        assert found, f"{command}: name the test that runs it"
        assert (ROOT / found[0]).is_file()


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
