"""The catalog, by files."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmgw.ctl.session import CtlCommand, Session, pass_session, terminal_width
from llmgw.errors import ConfigError, Problem, RequestError

if TYPE_CHECKING:
    from llmgw.adminapi.explain import PlanReply

_FILE = click.Path(path_type=Path, allow_dash=True)


@click.command(cls=CtlCommand, examples=["llmgw ctl plan catalog.yaml"])
@click.argument("file", type=_FILE)
@click.option("--prune", is_flag=True, help="Also remove the API's models that FILE has not.")
@pass_session
def plan(session: Session, file: Path, prune: bool) -> None:
    """What FILE would change, without changing it."""
    from llmgw.adminapi.explain import PlanReply

    body = _request(session, file, prune)
    raw = session.client.send("POST", "/plan", body)
    names = {model["name"] for model in body["models"]}
    session.show_reply(raw, PlanReply, lambda reply: plan_text(reply, names))


def plan_text(reply: PlanReply, names: Collection[str]) -> str:
    """Return the steps of a plan, then which of these models cannot be placed.

    Others that cannot be are no news: `status` has them.
    """
    from llmgw.ctl.render import readable, refusal_tree, table

    parts = []
    if reply.actions:
        parts.append(
            table(
                ["ACTION", "REPLICA", "MODEL", "PROFILE", "NODES", "DEVICES", "BECAUSE"],
                (
                    [
                        action.action,
                        action.replica,
                        action.model,
                        action.profile,
                        action.nodes,
                        action.devices or None,
                        action.because,
                    ]
                    for action in reply.actions
                ),
                width=terminal_width(),
            )
        )
    parts += [readable(problem) for problem in reply.problems]
    unplaced = [item for item in reply.unplaced if item.model in names]
    if unplaced:
        parts.append("\n".join(["cannot be placed:", *refusal_tree(unplaced, 1)]))
    return "\n\n".join(parts) or "nothing to do"


@click.command(
    cls=CtlCommand,
    examples=["llmgw ctl apply catalog.yaml", "llmgw ctl export | llmgw ctl apply -"],
)
@click.argument("file", type=_FILE)
@click.option("--prune", is_flag=True, help="Also remove the API's models that FILE has not.")
@pass_session
def apply(session: Session, file: Path, prune: bool) -> None:
    """Put the models of FILE into the catalog, all or none."""
    # With the version that the removals were worked out from: a model that somebody else adds
    # in between must not be pruned by us.
    etag = f'"{_catalog(session)["version"]}"' if prune else None
    body = _request(session, file, prune)
    _show_applied(session, session.client.send("POST", "/catalog", body, etag=etag))


@click.command(cls=CtlCommand, examples=["llmgw ctl delete llama-3.1-8b"])
@click.argument("model")
@pass_session
def delete(session: Session, model: str) -> None:
    """Remove MODEL: withdrawn from routers first, then drained and stopped."""
    from llmgw.ctl.client import escape

    _show_applied(session, session.client.send("DELETE", f"/catalog/{escape(model)}"))


@click.command(cls=CtlCommand, examples=["llmgw ctl history", "llmgw ctl rollback 12"])
@click.argument("version", type=click.IntRange(min=0))
@pass_session
def rollback(session: Session, version: int) -> None:
    """Make the API's entries what they were at VERSION (see `history`)."""
    _show_applied(session, session.client.send("POST", "/rollback", {"version": version}))


@click.command(cls=CtlCommand, examples=["llmgw ctl retry llama-3.1-8b"])
@click.argument("model")
@pass_session
def retry(session: Session, model: str) -> None:
    """Try again at once what of MODEL has failed: a rollout that stands still, or a start."""
    from llmgw.adminapi.work import RetryReply
    from llmgw.ctl.client import escape

    raw = session.client.send("POST", f"/models/{escape(model)}/retry")

    def text(reply: RetryReply) -> str:
        if not reply.nodes:
            return f"nothing of {reply.model} has failed; see llmgw ctl explain {reply.model}"
        return f"{reply.model} is tried again where it had failed: {', '.join(reply.nodes)}"

    session.show_reply(raw, RetryReply, text)


def _show_applied(session: Session, raw: str) -> None:
    from llmgw.adminapi.catalog import ApplyReply

    def text(reply: ApplyReply) -> str:
        from llmgw.ctl.render import plain

        lines = [
            f"{plain(change.name)}: {'removed' if change.model is None else 'put'}"
            for change in reply.changes
        ] or ["nothing changed"]
        lines.append(f"catalog version {reply.version}")
        if reply.plan is not None and reply.changes:
            lines += ["", plan_text(reply.plan, {change.name for change in reply.changes})]
        return "\n".join(lines)

    session.show_reply(raw, ApplyReply, text)


@click.command(cls=CtlCommand, examples=["llmgw ctl diff catalog.yaml"])
@click.argument("file", type=_FILE)
@pass_session
def diff(session: Session, file: Path) -> None:
    """How FILE differs from the catalog. Exits with 1 if it does, like diff."""
    entries = {entry["name"]: entry["model"] for entry in _catalog(session)["entries"]}
    lines: list[str] = []
    changes: dict[str, Any] = {}
    for model in _models(file):
        before = entries.get(model["name"])
        after = _as_kept(session, model)
        if before != after:
            changes[model["name"]] = {"before": before, "after": after}
            lines += difflib.unified_diff(
                _yaml(before), _yaml(after), f"catalog/{model['name']}", str(file), lineterm=""
            )
    session.show(json.dumps(changes), lambda: _clean("\n".join(lines)) or "no difference")
    if changes:
        sys.exit(1)


@click.command(cls=CtlCommand, examples=["llmgw ctl get llama-3.1-8b > llama.yaml"])
@click.argument("model")
@pass_session
def get(session: Session, model: str) -> None:
    """MODEL's entry, as `apply` takes it."""
    from llmgw.ctl.client import escape

    raw = session.client.get(f"/catalog/{escape(model)}")
    session.show(raw, lambda: "\n".join(_yaml({"models": [json.loads(raw)["model"]]})))


@click.command(cls=CtlCommand, examples=["llmgw ctl export > catalog.yaml"])
@click.option("--owner", help="Only entries of this owner, such as `api`.")
@pass_session
def export(session: Session, owner: str | None) -> None:
    """The whole catalog as YAML."""
    if session.as_json:
        click.echo(session.client.get("/catalog"))
    else:
        click.echo(session.client.get("/export", owner=owner), nl=False)


@click.command(cls=CtlCommand, examples=["llmgw ctl history", "llmgw ctl history --model llama"])
@click.option("--model", help="Of this model only.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@pass_session
def history(session: Session, model: str | None, limit: int) -> None:
    """Who changed what in the catalog, newest first."""
    from llmgw.adminapi.catalog import HistoryReply

    raw = session.client.get("/history", name=model, limit=limit)

    def text(reply: HistoryReply) -> str:
        import time

        from llmgw.ctl.render import age, table

        now = time.time()
        return table(
            ["VERSION", "AGE", "WHO", "OWNER", "MODEL", "CHANGE"],
            (
                [
                    change.version,
                    age(change.at, now),
                    change.who,
                    change.owner,
                    change.name,
                    "removed" if change.model is None else "put",
                ]
                for change in reply.changes
            ),
        )

    session.show_reply(raw, HistoryReply, text)


def _request(session: Session, file: Path, prune: bool) -> dict[str, Any]:
    models = _models(file)
    remove: list[str] = []
    if prune:
        kept = {model["name"] for model in models}
        remove = [
            entry["name"]
            for entry in _catalog(session)["entries"]
            if entry["owner"] == "api" and entry["name"] not in kept
        ]
    return {"models": models, "remove": remove}


def _catalog(session: Session) -> dict[str, Any]:
    catalog: dict[str, Any] = json.loads(session.client.get("/catalog"))
    return catalog


def _as_kept(session: Session, model: dict[str, Any]) -> dict[str, Any]:
    """Return the entry as the catalog would keep it: durations in seconds, no defaults."""
    from pydantic import ValidationError

    from llmgw.domain.catalog import Model

    try:
        kept: dict[str, Any] = json.loads(
            Model.model_validate(model).model_dump_json(exclude_defaults=True)
        )
    except ValidationError:
        # Let the server say what is wrong: it alone knows every rule.
        session.client.send("POST", "/plan", {"models": [model]})
        raise RequestError(f"the entry {model['name']!r} cannot be read") from None
    return kept


def _models(file: Path) -> list[dict[str, Any]]:
    """Read `models:`, or one entry, of a YAML, JSON or TOML file. Raises ConfigError naming it."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        value = _parsed(text, file.suffix)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _problem(file, "", f"cannot be read: {reason}") from None
    models = value
    if isinstance(value, dict):
        models = [value] if "name" in value and "models" not in value else value.get("models")
    if not isinstance(models, list):
        raise _problem(file, "models", "must be a list of models; or give one model's entry")
    for index, model in enumerate(models):
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            raise _problem(file, f"models[{index}]", "must be a mapping with a `name`")
    return models


def _parsed(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        import tomllib

        return tomllib.loads(text)
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from None


def _yaml(value: object) -> list[str]:
    import yaml

    if value is None:
        return []
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text.splitlines()


def _clean(text: str) -> str:
    from llmgw.ctl.render import plain

    return plain(text)


def _problem(file: Path, path: str, message: str) -> ConfigError:
    return ConfigError(str(file), [Problem(path=path, message=message)])
