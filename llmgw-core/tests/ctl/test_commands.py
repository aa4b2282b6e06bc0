"""What operators see, and what their commands do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from anyio.from_thread import BlockingPortal
from click.testing import CliRunner, Result

from llmgw.ctl.commands import ctl
from llmgw.ctl.session import CtlCommand
from llmgw.errors import ConfigError, PermanentError, RequestError, TransientError
from llmgw.testing.cluster import RunningServer
from llmgw.testing.values import device, inventory

Run = Callable[..., Result]


def serve(server: RunningServer, portal: BlockingPortal, run: Run, port: int) -> None:
    """Give the server a node, and wait until the model runs on it."""
    devices = tuple(device("gpu-01", index, labels={"xid": f"3{index}"}) for index in range(2))
    node = inventory("gpu-01", devices=devices, port_range=(port, port))
    portal.call(server.nodes.join, node)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        portal.call(server.nodes.beat)
        portal.call(server.nodes.settle)
        replicas = json.loads(run("replicas", "--json").stdout)["replicas"]
        if replicas and replicas[0]["state"] == "ready":
            return
        time.sleep(0.1)
    pytest.fail("the model did not start")


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_the_fleet_in_tables(
    server: RunningServer, portal: BlockingPortal, run: Run, engine_port: int
) -> None:
    serve(server, portal, run, engine_port)
    status = run("status").stdout
    assert "leads" in status
    assert "1 of 2 in use" in status

    head, row = cells(run("nodes").stdout)
    assert head[:4] == ["NODE", "STATE", "POOL", "DEVICES"]
    assert row[:6] == ["gpu-01", "ready", "default", "2", "1", "1"]
    assert row[-1] == "-", "a blank is printed, so that columns can be cut"

    assert cells(run("models").stdout)[1][:3] == ["tiny", "-", "serving"]
    assert "tiny" in run("replicas").stdout
    assert "tiny" in run("endpoints").stdout
    detail = run("node", "gpu-01").stdout
    assert "NVIDIA" in detail
    assert re.search(r"^1 .* xid=31$", detail, re.MULTILINE), "what the driver says of a device"
    assert "tiny is serving: to " in run("route", "tiny").stdout
    assert "model tiny: serving" in run("explain", "tiny").stdout
    assert "node gpu-01: ready" in run("explain", "gpu-01", "--node").stdout


def test_json_is_the_apis_reply_untouched(server: RunningServer, run: Run) -> None:
    for arguments in (("--json", "models"), ("models", "--json")):
        assert json.loads(run(*arguments).stdout)["models"][0]["name"] == "tiny"


def test_why_a_model_does_not_run_is_said_with_code_and_way_out(
    server: RunningServer, run: Run
) -> None:
    shown = run("explain", "tiny").stdout
    assert "[" in shown
    assert "way out:" in shown


def test_a_catalog_is_planned_applied_compared_and_taken_back(
    server: RunningServer, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text(
        yaml.safe_dump({"models": [{"name": "more", "idle_after": "15m", "replicas": {"min": 0}}]})
    )
    assert run("plan", str(file)).exit_code == 0
    assert run("diff", str(file)).exit_code == 1
    before = json.loads(run("export", "--json").stdout)["version"]
    assert "more: put" in run("apply", str(file)).stdout
    same = run("diff", str(file))
    assert (same.exit_code, same.stdout) == (0, "no difference\n")
    assert "nothing changed" in run("apply", str(file)).stdout
    assert "idle_after: 900.0" in run("get", "more").stdout

    assert run("apply", "-", text=run("export", "--owner", "api").stdout).exit_code == 0
    assert "more: removed" in run("rollback", str(before)).stdout
    assert "more" not in run("export").stdout
    assert "removed" in run("history").stdout


def test_a_plan_speaks_of_its_own_models_only(
    server: RunningServer, portal: BlockingPortal, run: Run, tmp_path: Path, engine_port: int
) -> None:
    serve(server, portal, run, engine_port)
    profile = {"engine": "fake", "weights": "path:/w", "devices": {"count": 9, "memory_gib": 1}}
    for name in ("huge", "vast"):
        model = {"name": name, "profiles": [profile]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"models": [model]}))
    assert "huge cannot run" in run("apply", str(tmp_path / "huge.yaml")).stdout
    planned = run("plan", str(tmp_path / "vast.yaml")).stdout
    assert "vast cannot run" in planned
    assert "huge" not in planned


def test_prune_removes_the_apis_other_models_and_no_files(
    server: RunningServer, run: Run, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"models: [{{name: {name}}}]")
    run("apply", str(tmp_path / "a.yaml"))
    pruned = run("apply", "--prune", str(tmp_path / "b.yaml")).stdout
    assert "a: removed" in pruned
    entries = json.loads(run("export", "--json").stdout)["entries"]
    assert [entry["name"] for entry in entries] == ["b", "tiny"]


def test_a_file_with_one_entry_is_applied_as_the_catalog_folder_takes_it(
    server: RunningServer, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("name: one\nprofiles: [{engine: fake, weights: 'path:/w'}]\n")
    assert "one: put" in run("apply", str(file)).stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("models: {", "not YAML"),
        ("nothing: here", "must be a list of models"),
        ("models: [5]", "must be a mapping with a `name`"),
    ],
)
def test_a_file_that_is_no_catalog_is_named(
    server: RunningServer, run: Run, tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    error = run("apply", str(file)).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)
    assert "bad.yaml" in str(error)


def test_an_entry_that_is_refused_is_told_problem_by_problem(
    server: RunningServer, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("models: [{name: .., profiles: [{engine: vlm, weights: 'path:/x'}]}]")
    error = run("apply", str(file)).exception
    assert isinstance(error, RequestError)
    assert "models[0].name" in str(error)


def test_a_key_is_printed_alone_so_that_it_can_be_piped(server: RunningServer, run: Run) -> None:
    made = run("keys", "create", "ci", "--model", "tiny", "--requests-per-minute", "5")
    assert made.stdout.startswith("llmgw_")
    assert len(made.stdout.split()) == 1
    listed = cells(run("keys").stdout)[1]
    assert listed[1:4] == ["ci", "tiny", "requests_per_minute=5"]
    assert run("keys", "change", listed[0], "--tokens-per-day", "7").exit_code == 0
    assert cells(run("keys").stdout)[1][2:4] == ["all", "tokens_per_day=7"]
    run("keys", "revoke", listed[0])
    assert cells(run("keys", "list").stdout)[1][-1] == "no"


def test_a_secret_is_revoked_by_its_name_where_that_says_which(
    server: RunningServer, run: Run
) -> None:
    for name in ("ci", "ci", "lab"):
        run("keys", "create", name)
    assert run("keys", "revoke", "lab").exit_code == 0
    listed = {row[0]: row[1] for row in cells(run("keys").stdout)[1:] if row[-1] == "yes"}
    assert sorted(listed.values()) == ["ci", "ci"]
    refused = run("keys", "revoke", "ci").exception
    assert isinstance(refused, PermanentError)
    assert all(id_ in str(refused) for id_ in listed)
    run("keys", "revoke", next(iter(listed)))
    assert run("keys", "revoke", "ci").exit_code == 0, "the other one is revoked already"
    assert "there is no API key 'ci'" in str(run("keys", "revoke", "ci").exception)

    run("tokens", "create", "grafana")
    run("tokens", "revoke", "grafana")
    assert cells(run("tokens").stdout)[-1][-1] == "no"


def test_tokens_of_three_kinds(server: RunningServer, run: Run) -> None:
    viewer = run("tokens", "create", "grafana").stdout.strip()
    assert run("--token", viewer, "status").exit_code == 0
    refused = run("--token", viewer, "keys", "create", "x").exception
    assert isinstance(refused, RequestError)
    assert "needs the role admin" in str(refused)

    join = run("join-token", "create", "--pool", "chat", "--uses", "3").stdout.strip()
    assert join.startswith("llmgw1.")
    assert ["chat", "3"] in [row[1:3] for row in cells(run("join-token").stdout)]


def test_operators_words_about_a_node(
    server: RunningServer, portal: BlockingPortal, run: Run, engine_port: int
) -> None:
    serve(server, portal, run, engine_port)
    run("cordon", "gpu-01", "--reason", "fan is loud")
    assert "ready,cordoned" in run("nodes").stdout
    assert "fan is loud" in run("nodes").stdout
    run("uncordon", "gpu-01")
    assert "cordoned" not in run("nodes").stdout
    assert run("drain", "gpu-01", "--limit", "30m").exit_code == 0
    assert "ready,draining" in run("nodes").stdout
    assert run("fence", "gpu-01", "--reason", "off", text="n\n").exit_code == 1
    shown = run("events").stdout
    assert "node_drained  node gpu-01" in shown
    assert "(admin.token)" in shown


def test_the_authority_is_replaced_step_by_step(server: RunningServer, run: Run) -> None:
    (old,) = [row[0] for row in cells(run("authority").stdout)[1:]]
    assert [old, "yes"] in cells(run("authority", "begin").stdout)
    assert [old, "no"] in cells(run("authority", "switch").stdout)
    assert run("authority", "finish", text="n\n").exit_code == 1
    (row,) = cells(run("authority", "finish", "--yes").stdout)[1:]
    assert row[0] != old
    assert isinstance(run("authority", "finish", "--yes").exception, RequestError)


def test_a_revoked_node_is_told_why_until_it_is_readmitted(server: RunningServer, run: Run) -> None:
    done = run("revoke", "gpu-01", "--reason", "stolen")
    assert (done.exit_code, done.stdout) == (0, "gpu-01 is revoked\n")
    assert "no node 'gpu-01' is known" in done.stderr, "it may be a typing error"
    assert run("readmit", "gpu-01").exit_code == 0
    assert "node_revoked  node gpu-01  stolen" in run("events").stdout


def test_what_is_not_there_says_how_to_see_what_is(server: RunningServer, run: Run) -> None:
    for arguments, way_out in (
        (("node", "ghost"), "llmgw ctl nodes"),
        (("explain", "ghost"), "llmgw ctl models"),
        (("cordon", "ghost"), "llmgw ctl nodes"),
        (("rollback", "999"), "llmgw ctl history"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, RequestError), arguments
        assert way_out in str(error)


def test_what_has_not_failed_is_not_tried_again(server: RunningServer, run: Run) -> None:
    assert "nothing of tiny has failed" in run("retry", "tiny").stdout
    assert isinstance(run("retry", "ghost").exception, RequestError)


def test_usage_is_empty_but_well_formed(server: RunningServer, run: Run) -> None:
    assert cells(run("usage").stdout)[0][:3] == ["FROM", "KEY", "MODEL"]


def test_a_server_that_is_not_there_is_one_sentence(run: Run) -> None:
    error = run("--server", "http://127.0.0.1:1", "status").exception
    assert isinstance(error, TransientError)
    assert "is the server running?" in str(error)


def test_the_api_instead_of_the_admin_address_is_recognised(
    server: RunningServer, run: Run, tmp_path: Path
) -> None:
    error = run("--server", f"http://{server.serving.api}/v1", "status").exception
    assert isinstance(error, RequestError)


def test_every_command_has_help_with_an_example() -> None:
    def walk(command: click.Command, ctx: click.Context) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        found = [command.get_command(ctx, name) for name in command.list_commands(ctx)]
        return [leaf for item in found if item is not None for leaf in walk(item, ctx)]

    commands = walk(ctl, click.Context(ctl))
    assert len(commands) > 40
    for command in commands:
        assert isinstance(command, CtlCommand), command.name
        assert command.help, command.name
        assert command.examples, command.name
        assert all("llmgw ctl" in line for line in command.examples)


@pytest.mark.parametrize("group", ["keys", "tokens", "join-token", "authority", "contexts"])
def test_a_misspelt_command_is_named_instead_of_listing(group: str) -> None:
    refused = CliRunner().invoke(ctl, [group, "remvoe", "x"])
    assert refused.exit_code == 2
    assert "No such command 'remvoe'" in refused.stderr


def test_what_is_changed_by_a_command_is_not_watched(server: RunningServer, run: Run) -> None:
    refused = run("watch", "keys", "create", "ci").exception
    assert isinstance(refused, PermanentError)
    assert len(cells(run("keys").stdout)) == 1
    assert run("watch", "top").exit_code == run("watch", "nothing").exit_code == 2


def test_contexts_are_listed_for_programs_too(run: Run) -> None:
    run("contexts", "set", "prod", "https://gw:8081", "--server-ca", "/ca.crt")
    told = json.loads(run("contexts", "--json").stdout)
    expected = {"server": "https://gw:8081", "server_ca": "/ca.crt"}
    assert told == {"current": "prod", "contexts": {"prod": expected}}


def test_completion_scripts_are_printed() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_LLMGW_COMPLETE" in CliRunner().invoke(ctl, ["completion", shell]).stdout
