"""`llmgw up`: the command line. What happens is `run`'s business."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument(
    "what", required=False, type=click.Path(path_type=Path), metavar="[MODEL.gguf | CATALOG]"
)
@click.option("--once", is_flag=True, help="Ask one question, print the answer and times, and end.")
@click.option("--reset", is_flag=True, help="Forget what an earlier `llmgw up` kept, weights too.")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, help="Where clients come.")
@click.option(
    "--admin-listen", default="127.0.0.1:8081", show_default=True, help="Where operators come."
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Folder for everything that is kept [default: the platform's].",
)
def up(
    what: Path | None,
    once: bool,
    reset: bool,
    listen: str,
    admin_listen: str,
    state_dir: Path | None,
) -> int:
    """Serve a model on this machine: server and agent in one terminal.

    Without an argument a small chat model is downloaded and served as `smollm2` and `default`.
    Ctrl-C ends all that was started; a second one at once.

    \b
    Examples:
        llmgw up
        llmgw up ~/models/qwen3-4b-q4.gguf
        llmgw up catalog.yaml --listen 127.0.0.1:9000
        llmgw up --once
    """
    from llmgw.cli.up.run import run_up  # `--help` needs none of it

    return run_up(
        what.expanduser().resolve() if what else None,
        once=once,
        reset=reset,
        listen=listen,
        admin_listen=admin_listen,
        state_dir=state_dir.expanduser().resolve() if state_dir else None,
    )
