"""What operators do to nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from llmgw.ctl.session import CtlCommand, ListingGroup, Session, pass_session
from llmgw.domain.units import parse_duration
from llmgw.errors import RequestError

if TYPE_CHECKING:
    from llmgw.adminapi.work import WeightsReply


class Duration(click.ParamType[float]):
    """`90`, `30s`, `15m`, `1h30m`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return parse_duration(
                float(value) if str(value).replace(".", "", 1).isdigit() else value
            )
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _act(session: Session, node: str, verb: str, body: Mapping[str, Any] | None, text: str) -> None:
    from llmgw.ctl.client import escape

    raw = session.client.send("POST", f"/nodes/{escape(node)}/{verb}", body)
    session.show(raw, lambda: text)


@click.command(cls=CtlCommand, examples=["llmgw ctl cordon gpu-01 --reason 'fan is loud'"])
@click.argument("node")
@click.option("--reason", default="", help="Shown wherever the node is.")
@pass_session
def cordon(session: Session, node: str, reason: str) -> None:
    """Give NODE no new replica; those that it has stay."""
    _act(session, node, "cordon", {"reason": reason}, f"{node} is cordoned")


@click.command(cls=CtlCommand, examples=["llmgw ctl uncordon gpu-01"])
@click.argument("node")
@pass_session
def uncordon(session: Session, node: str) -> None:
    """Take back a cordon or a drain of NODE."""
    _act(session, node, "uncordon", None, f"{node} is back in use")


@click.command(
    cls=CtlCommand, examples=["llmgw ctl drain gpu-01 --limit 30m --reason 'kernel update'"]
)
@click.argument("node")
@click.option("--limit", type=Duration(), help="Stop what is still there after this long.")
@click.option("--reason", default="", help="Shown wherever the node is.")
@pass_session
def drain(session: Session, node: str, limit: float | None, reason: str) -> None:
    """Move NODE's replicas away, replacements first where there is room."""
    body = {"reason": reason, "limit_s": limit}
    _act(session, node, "drain", body, f"{node} is draining; see llmgw ctl node {node}")


@click.command(cls=CtlCommand, examples=["llmgw ctl fence gpu-01 --reason 'power is off' --yes"])
@click.argument("node")
@click.option("--reason", required=True, help="How you know that nothing runs there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def fence(session: Session, node: str, reason: str, yes: bool) -> None:
    """Vouch that nothing runs on NODE: its devices count as free, its replicas are replaced."""
    if not yes:
        click.confirm(f"Are you sure that nothing runs on {node} any more?", abort=True, err=True)
    _act(session, node, "fence", {"reason": reason}, f"{node} is fenced")


@click.command(cls=CtlCommand, examples=["llmgw ctl revoke gpu-01 --reason stolen"])
@click.argument("node")
@click.option("--reason", required=True, help="Said to the node whenever it tries to connect.")
@pass_session
def revoke(session: Session, node: str, reason: str) -> None:
    """Refuse NODE from now on, whatever certificate it has; what it runs goes on running."""
    _act(session, node, "revoke", {"reason": reason}, f"{node} is revoked")
    from llmgw.ctl.client import escape

    try:
        session.client.get(f"/nodes/{escape(node)}")
    except RequestError as error:
        if error.status == 404:  # one that was forgotten, or a typing error
            click.echo(f"no node {node!r} is known; is the name right?", err=True)


@click.command(cls=CtlCommand, examples=["llmgw ctl readmit gpu-01"])
@click.argument("node")
@pass_session
def readmit(session: Session, node: str) -> None:
    """Take a revocation of NODE back."""
    _act(session, node, "readmit", None, f"{node} may connect again")


@click.command(cls=CtlCommand, examples=["llmgw ctl forget gpu-01"])
@click.argument("node")
@pass_session
def forget(session: Session, node: str) -> None:
    """Forget NODE, which will not come back; should it, it is known again."""
    from llmgw.ctl.client import escape

    raw = session.client.send("DELETE", f"/nodes/{escape(node)}")
    session.show(raw, lambda: f"{node} is forgotten")


@click.command(
    cls=CtlCommand,
    examples=[
        "llmgw ctl logs gpu-01",
        "llmgw ctl logs gpu-01 --sources",
        "llmgw ctl logs gpu-01 --source llama-3-1.0 -n 50 -f",
        "llmgw ctl logs",
    ],
)
@click.argument("node", required=False)
@click.option("--source", default="agent", show_default=True, help="`agent`, or a shard's id.")
@click.option("--sources", is_flag=True, help="List the logs that the node offers.")
@click.option("-n", "--lines", type=click.IntRange(1, 10_000), default=200, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@pass_session
def logs(
    session: Session, node: str | None, source: str, sources: bool, lines: int, follow: bool
) -> None:
    """Logs of NODE: its agent's, or an engine's. Without NODE the server's own."""
    from llmgw.ctl.client import escape

    if node is None:
        _print_lines(session, "/logs", lines=lines)
    elif sources:
        raw = session.client.get(f"/nodes/{escape(node)}/logs/sources")
        session.show(raw, lambda: _sources_table(raw))
    else:
        path = f"/nodes/{escape(node)}/logs"
        _print_lines(session, path, source=source, lines=lines, follow=follow)


def _print_lines(session: Session, path: str, **query: object) -> None:
    from llmgw.ctl.render import plain

    with session.client.stream(path, **query) as lines:
        for line in lines:
            click.echo(plain(line))


def _sources_table(raw: str) -> str:
    from llmgw.adminapi.work import LogSourcesReply
    from llmgw.ctl.client import parse
    from llmgw.ctl.render import table

    return table(
        ["SOURCE", "LINES", "WHAT"],
        ([item.name, item.lines, item.description] for item in parse(LogSourcesReply, raw).sources),
    )


@click.group(cls=ListingGroup)
def weights() -> None:
    """Weights on a node."""


@weights.command("list", cls=CtlCommand, examples=["llmgw ctl weights list gpu-01"])
@click.argument("node")
@pass_session
def list_weights(session: Session, node: str) -> None:
    """Weights on NODE, and who uses them."""
    from llmgw.ctl.client import escape

    raw = session.client.get(f"/nodes/{escape(node)}/weights")

    def text() -> str:
        from llmgw.adminapi.work import NodeWeightsReply
        from llmgw.ctl.client import parse
        from llmgw.ctl.render import table

        return table(
            ["WEIGHTS", "SIZE", "STATE", "USED BY"],
            (
                [item.ref, _part(item), item.state, item.used_by]
                for item in parse(NodeWeightsReply, raw).weights
            ),
        )

    session.show(raw, text)


@weights.command(cls=CtlCommand, examples=["llmgw ctl weights pull gpu-01 hf:Qwen/Qwen3-0.6B@main"])
@click.argument("node")
@click.argument("ref")
@pass_session
def pull(session: Session, node: str, ref: str) -> None:
    """Have NODE fetch REF, from another node that has it or from its source; wait until it is there.

    Ctrl-C ends the waiting, not the fetching.
    """
    raw = _have_done(session, node, "weights", ref, {"ref": ref})
    session.show(raw, lambda: f"{ref} is on {node}")


@weights.command(
    "remove", cls=CtlCommand, examples=["llmgw ctl weights remove gpu-01 hf:Qwen/Qwen3-0.6B@main"]
)
@click.argument("node")
@click.argument("ref")
@pass_session
def remove_weights(session: Session, node: str, ref: str) -> None:
    """Remove REF from NODE; refused while a shard uses it."""
    from llmgw.ctl.client import escape

    raw = session.client.send("DELETE", f"/nodes/{escape(node)}/weights", ref=ref)
    session.show(raw, lambda: f"{ref} is gone from {node}")


@click.group(cls=ListingGroup)
def engines() -> None:
    """Engines on a node."""


@engines.command("list", cls=CtlCommand, examples=["llmgw ctl engines list gpu-01"])
@click.argument("node")
@pass_session
def list_engines(session: Session, node: str) -> None:
    """Engines that NODE can launch without installing anything."""
    from llmgw.ctl.client import escape

    raw = session.client.get(f"/nodes/{escape(node)}")

    def text() -> str:
        from llmgw.adminapi.fleet import NodeDetailReply
        from llmgw.ctl.client import parse
        from llmgw.ctl.render import table

        return table(
            ["ENGINE", "VERSION", "PATH"],
            (
                [item.engine, item.version, item.path]
                for item in parse(NodeDetailReply, raw).engines
            ),
        )

    session.show(raw, text)


@engines.command(cls=CtlCommand, examples=["llmgw ctl engines install gpu-01 vllm 0.33.0"])
@click.argument("node")
@click.argument("engine")
@click.argument("version")
@pass_session
def install(session: Session, node: str, engine: str, version: str) -> None:
    """Have NODE install an engine, beside those that it has; wait until it is done.

    Ctrl-C ends the waiting, not the installation.
    """
    body = {"engine": engine, "version": version}
    raw = _have_done(session, node, "engines", f"{engine} {version}", body)
    session.show(raw, lambda: f"{engine} {version} is on {node}")


@engines.command("remove", cls=CtlCommand, examples=["llmgw ctl engines remove gpu-01 vllm 0.32.0"])
@click.argument("node")
@click.argument("engine")
@click.argument("version")
@pass_session
def remove_engine(session: Session, node: str, engine: str, version: str) -> None:
    """Remove an installed engine from NODE."""
    from llmgw.ctl.client import escape

    path = f"/nodes/{escape(node)}/engines/{escape(engine)}/{escape(version)}"
    raw = session.client.send("DELETE", path)
    session.show(raw, lambda: f"{engine} {version} is gone from {node}")


def _have_done(
    session: Session, node: str, what: str, subject: str, body: Mapping[str, str]
) -> str:
    """Ask for long work on a node, and return the answer when it is done."""
    from llmgw.adminapi.work import ProgressReply
    from llmgw.ctl.client import escape
    from llmgw.ctl.waiting import wait_for

    client = session.client

    def look() -> str:
        jobs = client.read(ProgressReply, "/progress").jobs
        return next(
            (
                job.progress
                for job in jobs
                if (job.node, job.subject, job.state) == (node, subject, "running")
            ),
            "",
        )

    path = f"/nodes/{escape(node)}/{what}"
    return wait_for(lambda: client.send("POST", path, body, is_long=True), look)


def _part(item: WeightsReply) -> str:
    from llmgw.ctl.render import size

    whole = "" if item.total_bytes is None else f" of {size(item.total_bytes)}"
    return f"{size(item.size_bytes)}{whole}"
