"""From an assignment to the command of one rank of SGLang."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from llmgw.contracts.engine import Assignment
from llmgw_engine_sglang.options import SglangOptions

#: ports of a shard, in the order that they are asked for
HTTP, NCCL, BOOTSTRAP, MEETING = range(4)
#: The engine derives up to nine further ports from the one where the ranks meet.
PORTS = MEETING + 10

SERVE = str(Path(__file__).with_name("serve.py"))
#: written in a way of their own below
_APART = ("lora_paths", "chat_template", "speculative_draft_model_path")


def serve_argv(assignment: Assignment, options: SglangOptions) -> tuple[str, ...]:
    """Return the command: our entry point under the environment's interpreter."""
    home = assignment.home
    interpreter = home.command or (home.python or sys.executable,)
    return (
        *interpreter,
        "-Iu",  # no packages but the environment's own, and no line held back from the log
        SERVE,
        "serve",
        "--model-path",
        assignment.weights_path,
        *_address(assignment),
        *_ranks(assignment, options),
        *_role(assignment),
        *_flags(options),
        *_files(assignment, options),
    )


def _address(assignment: Assignment) -> Iterator[str]:
    spec = assignment.spec
    yield from ("--host", assignment.bind_address, "--port", str(spec.ports[HTTP]))
    # The engine takes one name, but answers to any.
    yield from ("--served-model-name", spec.served_names[0])
    yield from ("--enable-metrics", "--enable-cache-report")
    if not spec.devices:
        yield from ("--device", "cpu")


def _ranks(assignment: Assignment, options: SglangOptions) -> Iterator[str]:
    spec = assignment.spec
    yield from ("--tp-size", str(spec.tensor), "--pp-size", str(spec.pipeline))
    if spec.data > 1:
        yield from ("--dp-size", str(spec.data))
    yield from ("--nccl-port", str(spec.ports[NCCL]))
    if spec.world_size > 1:
        head = spec.peers[0]
        yield from ("--nnodes", str(spec.world_size), "--node-rank", str(spec.rank))
        yield from ("--dist-init-addr", _socket_address(head.address, head.ports[MEETING]))
    elif options.enable_dp_attention:
        # Without it the ranks meet at ports 233 above the HTTP port, which may be another shard's.
        yield from ("--dist-init-addr", f"127.0.0.1:{spec.ports[MEETING]}")


def _role(assignment: Assignment) -> Iterator[str]:
    spec = assignment.spec
    if spec.role is None:
        return
    # All ranks of a prefill engine report to the bootstrap server of rank 0.
    ports = spec.peers[0].ports if spec.peers else spec.ports
    yield from ("--disaggregation-mode", spec.role.value)
    yield from ("--disaggregation-bootstrap-port", str(ports[BOOTSTRAP]))


def _flags(options: SglangOptions) -> Iterator[str]:
    for name in type(options).model_fields:
        value = getattr(options, name)
        flag = "--" + name.replace("_", "-")
        if value is None or value is False or name in _APART:
            continue
        if value is True:
            yield flag
        elif isinstance(value, Mapping):
            yield from (flag, json.dumps(value, sort_keys=True, default=dict))
        else:
            yield from (flag, f"{value:g}" if isinstance(value, float) else str(value))


def _files(assignment: Assignment, options: SglangOptions) -> Iterator[str]:
    weights = PurePosixPath(assignment.weights_path)
    if options.chat_template:
        yield from ("--chat-template", str(weights / options.chat_template))
    if options.speculative_draft_model_path:
        draft = str(weights / options.speculative_draft_model_path)
        yield from ("--speculative-draft-model-path", draft)
    if options.lora_paths:
        yield "--lora-paths"
        yield from (f"{item.name}={weights / item.path}" for item in options.lora_paths)


def _socket_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
