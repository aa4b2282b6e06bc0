"""From an assignment to the command of one rank of vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from pydantic import BaseModel

from llmgw.contracts.engine import Assignment
from llmgw.domain.commands import ShardSpec
from llmgw_engine_vllm.options import VllmOptions

#: Data-parallel engines of one replica that may hand caches over: each listens on a port of its
#: own, counted up from the side channel's.
HANDOVER_ENGINES = 8
#: ports of a shard, in the order that they are asked for
HTTP, MASTER, DATA_RPC, SIDE_CHANNEL = range(4)
PORTS = SIDE_CHANNEL + HANDOVER_ENGINES

#: no packages but the environment's own, and no line held back from the log
_ISOLATED = "-Iu"
SERVE = str(Path(__file__).with_name("serve.py"))
_RAY_RANK = str(Path(__file__).with_name("ray_rank.py"))
#: switches that are on by default, so that `false` must be said
_SAID_WHEN_FALSE = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
#: written in a way of their own below, or not a flag
_APART = ("lora_modules", "chat_template", "cpu_kvcache_space", "distributed_executor_backend")


def serve_argv(assignment: Assignment, options: VllmOptions, *, drain_s: int) -> tuple[str, ...]:
    """Return the command: the profile's `vllm`, else that of the environment."""
    spec = assignment.spec
    joins_ray = spec.world_size > 1 and options.distributed_executor_backend == "ray"
    program = _ray_program(assignment) if joins_ray else _program(assignment)
    if joins_ray and spec.rank > 0:
        return program  # Ray itself brings vLLM's workers there
    return (
        *program,
        "serve",
        assignment.weights_path,
        *_address(assignment, options, drain_s),
        *_ranks(spec, options),
        *_flags(options),
        *_files(assignment, options),
    )


def _program(assignment: Assignment) -> tuple[str, ...]:
    home = assignment.home
    return home.command or (home.python or sys.executable, _ISOLATED, SERVE)


def _ray_program(assignment: Assignment) -> tuple[str, ...]:
    spec = assignment.spec
    head = spec.peers[0]
    return (
        *(assignment.home.python or sys.executable, _ISOLATED, _RAY_RANK),
        *("--own", spec.peers[spec.rank].address),
        *("--head", socket_address(head.address, head.ports[MASTER])),
        *("--devices", str(len(spec.devices))),
    )


def socket_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(assignment: Assignment, options: VllmOptions, drain_s: int) -> Iterator[str]:
    spec = assignment.spec
    # An alias with the name of an adapter asks for the adapter, not for the model below it.
    adapters = {item.name for item in options.lora_modules}
    canonical, *aliases = spec.served_names
    yield from ("--served-model-name", canonical)
    yield from (alias for alias in aliases if alias not in adapters)
    if spec.rank > 0:
        return  # such a rank serves no HTTP
    yield from ("--host", assignment.bind_address, "--port", str(spec.ports[HTTP]))
    # The engine's own default is to abort whatever runs, and then it may hang for ever.
    yield from ("--shutdown-timeout", str(drain_s))
    yield "--enable-prompt-tokens-details"
    yield "--enable-server-load-tracking"
    yield "--disable-uvicorn-access-log"
    yield "--disable-fastapi-docs"


def _ranks(spec: ShardSpec, options: VllmOptions) -> Iterator[str]:
    yield from ("--tensor-parallel-size", str(spec.tensor))
    yield from ("--pipeline-parallel-size", str(spec.pipeline))
    nodes = spec.world_size
    if spec.data > 1:
        yield from ("--data-parallel-size", str(spec.data))
    backend = options.distributed_executor_backend
    if nodes > 1 and backend != "ray":
        head = spec.peers[0]
        if spec.data > 1:
            local = spec.data // nodes
            yield from ("--data-parallel-size-local", str(local))
            yield from ("--data-parallel-address", head.address)
            yield from ("--data-parallel-rpc-port", str(head.ports[DATA_RPC]))
            if spec.rank > 0:
                yield from ("--data-parallel-start-rank", str(local * spec.rank))
        else:
            yield from ("--nnodes", str(nodes), "--node-rank", str(spec.rank))
            yield from ("--master-addr", head.address, "--master-port", str(head.ports[MASTER]))
            backend = backend or "mp"
        if spec.rank > 0:
            yield "--headless"
    if backend:
        yield from ("--distributed-executor-backend", backend)


def _flags(options: VllmOptions) -> Iterator[str]:
    for name in type(options).model_fields:
        value = getattr(options, name)
        flag = name.replace("_", "-")
        if value is None or name in _APART:
            continue
        if value is True:
            yield f"--{flag}"
        elif value is False:
            if name in _SAID_WHEN_FALSE:
                yield f"--no-{flag}"
        elif isinstance(value, BaseModel):
            yield from (f"--{flag}", _json(value.model_dump(exclude_none=True)))
        elif isinstance(value, Mapping):
            yield from (f"--{flag}", _json(value))
        else:
            yield from (f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value))
    if options.tool_call_parser:
        yield "--enable-auto-tool-choice"


def _files(assignment: Assignment, options: VllmOptions) -> Iterator[str]:
    weights = PurePosixPath(assignment.weights_path)
    if options.chat_template:
        yield from ("--chat-template", str(weights / options.chat_template))
    if options.lora_modules:
        yield "--lora-modules"
        yield from (f"{item.name}={weights / item.path}" for item in options.lora_modules)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=dict)
