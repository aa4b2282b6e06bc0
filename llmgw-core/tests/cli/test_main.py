"""The command line: what it finds, what it prints, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import get_completion_class

from llmgw import hookimpl
from llmgw.cli.main import llmgw, run
from llmgw.cli.plugins import plugin_rows
from llmgw.cli.table import COMMANDS
from llmgw.cli.tables import aligned
from llmgw.plugins import FoundPlugin


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert all(row.help in out for row in COMMANDS.values())


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("llmgw 0.")


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sever"]) == 2
    assert "No such command 'sever'" in capsys.readouterr().err


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    """The bound of 300 ms holds on an idle machine; here it leaves room for a busy one."""
    code = (
        "import sys; from llmgw.cli.main import run; run(['--help']);"
        "heavy = {'pydantic', 'sqlalchemy', 'grpc', 'httpx', 'rich', 'starlette', 'uvicorn', 'anyio'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 3.0


def test_a_configuration_error_is_printed_with_every_problem_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmgw.yaml"
    file.write_text("listn: 1\nworkers: 0\n")
    assert run(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err.splitlines()[-3:] == [
        f"llmgw: {file}: 2 problems",
        "  workers: must be at least 1, got 0 (line 2)",
        "  listn: unknown key 'listn'; did you mean 'listen'? (line 1)",
    ]


def test_a_good_file_is_said_to_be_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "llmgw.yaml"
    file.write_text("endpoints:\n  - {id: e1, url: 'http://127.0.0.1:9', models: [m]}\n")
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok (1 endpoint)\n"


def test_settings_are_shown_with_their_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmgw.yaml"
    file.write_text("listen: 127.0.0.1:9000\ncluster_secret: marker\n")
    assert run(["config", "show", "--config", str(file)]) == 0
    table = capsys.readouterr().out
    (line,) = [line for line in table.splitlines() if line.startswith("listen ")]
    assert line.split() == ["listen", '"127.0.0.1:9000"', "file", f"{file}:1"]
    assert "marker" not in table
    assert run(["config", "show", "--config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == {"value": 1, "origin": "default"}


@pytest.mark.parametrize("arguments", [[], ["--catalog"]])
def test_schemas_are_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


def test_a_table_is_aligned_and_blanks_are_dashes() -> None:
    assert aligned(("node", "gpus"), [("gpu-01", 8), ("a", None), ("", 0)]) == (
        "NODE    GPUS\ngpu-01  8\na       -\n-       0"
    )


def _plugin(distribution: str, name: str | None) -> FoundPlugin:
    def load() -> object:
        if name is None:
            raise ImportError("no driver")

        @hookimpl
        def llmgw_placement_policies() -> list[object]:
            return [SimpleNamespace(name=name, rank=tuple)]

        return SimpleNamespace(llmgw_placement_policies=llmgw_placement_policies)

    return FoundPlugin(distribution=distribution, version="1", entry="it", load=load)


def test_plugins_are_listed_with_what_they_supply_or_why_they_failed() -> None:
    rows, conflict = plugin_rows((_plugin("good", "cold"), _plugin("bad", None)))
    assert conflict is None
    assert [(row.distribution, row.ok, dict(row.supplies), row.reason) for row in rows] == [
        ("good", True, {"policy": ["cold"]}, None),
        ("bad", False, {}, "ImportError: no driver"),
    ]


def test_a_conflict_between_plugins_is_listed_and_said() -> None:
    rows, conflict = plugin_rows((_plugin("one", "cold"), _plugin("two", "cold")))
    assert len(rows) == 2
    assert "one and two" in str(conflict)


def test_the_installed_plugins_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run(["plugins", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert "llmgw-core" in {row["distribution"] for row in rows}
    assert all(row["ok"] or row["reason"] for row in rows)


@pytest.mark.parametrize("name", [name for name, row in COMMANDS.items() if ":" in row.target])
def test_every_command_of_the_core_can_be_loaded_and_describes_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: llmgw {name}" in capsys.readouterr().out


def _leaves(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command, info_name=path)
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [
        leaf for name, item in found if item is not None for leaf in _leaves(item, f"{path} {name}")
    ]


def test_the_help_of_every_command_shows_an_example_of_it() -> None:
    leaves = _leaves(llmgw, "llmgw")
    assert len(leaves) > 50
    for path, command in leaves:
        text = command.get_help(click.Context(command, info_name=path))
        _, found, examples = text.partition("Example")
        assert found, path
        # A group lists where nothing more is said.
        assert path.removesuffix(" list") in " ".join(examples.split()), path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_at_every_depth(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(llmgw, {}, "llmgw", "_LLMGW_COMPLETE")
    for before, start, wanted in (
        ([], "ct", "ctl"),
        (["ctl"], "rollb", "rollback"),
        (["ctl", "keys"], "cr", "create"),
    ):
        assert wanted in [item.value for item in completer.get_completions(before, start)]
