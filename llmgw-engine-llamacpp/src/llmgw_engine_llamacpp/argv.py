"""From an assignment to the command of one llama.cpp server, in both forms that there are.

`llama-server` takes flags. The `xllamacpp` wheel has no command line, so our own `launcher`
gets the same settings as parameters of the library. One table knows both spellings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from llmgw.contracts.engine import Assignment
from llmgw_engine_llamacpp.options import LlamaCppOptions

_MEET = str(Path(__file__).with_name("meet.py"))
_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
_ALL_LAYERS = 9999  # more than any model has; the library knows no word for "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting in both spellings."""

    flags: tuple[str, ...]  #: for `llama-server`
    params: tuple[tuple[str, object], ...]  #: attribute of `CommonParams`, dotted, and its value


#: option -> flag with a value, attribute of CommonParams
_VALUES = {
    "batch_size": ("--batch-size", "n_batch"),
    "ubatch_size": ("--ubatch-size", "n_ubatch"),
    "cache_type_k": ("--cache-type-k", "cache_type_k"),
    "cache_type_v": ("--cache-type-v", "cache_type_v"),
    "cache_ram": ("--cache-ram", "cache_ram_mib"),
    "cache_reuse": ("--cache-reuse", "n_cache_reuse"),
    "n_predict": ("--predict", "n_predict"),
    "split_mode": ("--split-mode", "split_mode"),
    "main_gpu": ("--main-gpu", "main_gpu"),
    "threads": ("--threads", "cpuparams.n_threads"),
    "threads_batch": ("--threads-batch", "cpuparams_batch.n_threads"),
    "threads_http": ("--threads-http", "n_threads_http"),
    "poll": ("--poll", "cpuparams.poll"),
    "numa": ("--numa", "numa"),
    "chat_template": ("--chat-template", "chat_template"),
    "reasoning_format": ("--reasoning-format", "reasoning_format"),
    "pooling": ("--pooling", "pooling_type"),
    "rope_scaling": ("--rope-scaling", "rope_scaling_type"),
    "rope_freq_base": ("--rope-freq-base", "rope_freq_base"),
    "rope_freq_scale": ("--rope-freq-scale", "rope_freq_scale"),
}

#: option -> flag if true, flag if false, attribute, whether the attribute means the opposite
_SWITCHES = {
    "cont_batching": ("--cont-batching", "--no-cont-batching", "cont_batching", False),
    "jinja": ("--jinja", "--no-jinja", "use_jinja", False),
    "warmup": ("--warmup", "--no-warmup", "warmup", False),
    "repack": ("--repack", "--no-repack", "no_extra_bufts", True),
}


def server_argv(assignment: Assignment, options: LlamaCppOptions) -> tuple[str, ...]:
    """Return the command where the profile names a `llama-server`."""
    command = assignment.home.command or ()
    flags = (flag for setting in _settings(assignment, options) for flag in setting.flags)
    workers = _workers(assignment)
    meet = (sys.executable, "-I", _MEET, *workers, "--") if workers else ()
    return (*meet, *command, *flags)


def worker_argv(assignment: Assignment, options: LlamaCppOptions) -> tuple[str, ...]:
    """Return the command of a rank above 0: the RPC server built beside the `llama-server`.

    It holds no model: rank 0 sends the tensors. It asks for no key either, so it listens on the
    address that the ranks share and nowhere else.
    """
    spec = assignment.spec
    program = PurePosixPath((assignment.home.command or ("",))[0]).with_name(options.rpc_server)
    own = spec.peers[spec.rank]
    return (str(program), "--host", own.address, "--port", str(own.ports[0]))


def launcher_argv(
    assignment: Assignment, options: LlamaCppOptions, *, drain_s: float
) -> tuple[str, ...]:
    """Return the command that serves by the `xllamacpp` wheel.

    The launcher is run by its path, so that an environment needs the wheel only and not this
    package; `-I` keeps the folder and the user's packages out of it.
    """
    params = dict(param for setting in _settings(assignment, options) for param in setting.params)
    return (
        assignment.home.python or sys.executable,
        "-I",
        _LAUNCHER,
        "--drain-s",
        f"{drain_s:g}",
        "--params",
        json.dumps(params, sort_keys=True, allow_nan=False),
    )


def _settings(assignment: Assignment, options: LlamaCppOptions) -> Iterator[Setting]:
    spec = assignment.spec
    yield _value("--host", "hostnames", assignment.bind_address, [assignment.bind_address])
    yield _value("--port", "port", spec.ports[0])
    yield _value("--model", "model.path", _model_path(assignment, options))
    # The engine answers to any name and calls itself by the alphabetically first alias. With
    # the canonical name alone, answers carry that one, whatever the aliases are.
    name = spec.served_names[0]
    yield _value("--alias", "model_alias", name, [name])
    yield Setting(flags=("--metrics",), params=(("endpoint_metrics", True),))
    yield Setting(flags=("--no-webui",), params=(("ui", False),))
    yield Setting(flags=("-fit", "off"), params=(("fit_params", False),))
    yield _value("--ctx-size", "n_ctx", options.ctx_size or 0)
    yield _value("--parallel", "n_parallel", options.slots)
    if options.shares_context:
        yield Setting(flags=("--kv-unified",), params=(("kv_unified", True),))
    yield _layers(options, len(spec.devices))
    for option, (flag, param) in _VALUES.items():
        if (value := getattr(options, option)) is not None:
            yield _value(flag, param, value)
    for option, (flag_on, flag_off, param, inverse) in _SWITCHES.items():
        if (value := getattr(options, option)) is not None:
            yield Setting(
                flags=(flag_on if value else flag_off,), params=((param, value is not inverse),)
            )
    yield from _special(assignment, options)


def _special(assignment: Assignment, options: LlamaCppOptions) -> Iterator[Setting]:
    """Yield what the two forms spell in different ways."""
    if options.flash_attn is not None:
        word = {"on": "enabled", "off": "disabled", "auto": "auto"}[options.flash_attn]
        yield _value("--flash-attn", "flash_attn_type", options.flash_attn, word)
    if options.tensor_split:
        text = ",".join(f"{part:g}" for part in options.tensor_split)
        yield _value("--tensor-split", "tensor_split", text, list(options.tensor_split))
    if options.chat_template_kwargs:
        kwargs = {
            key: json.dumps(value, sort_keys=True)
            for key, value in options.chat_template_kwargs.items()
        }
        text = json.dumps(dict(options.chat_template_kwargs), sort_keys=True)
        yield _value("--chat-template-kwargs", "default_template_kwargs", text, kwargs)
    if options.embeddings:
        yield Setting(flags=("--embeddings",), params=(("embedding", True),))
    if options.reranking:
        yield Setting(
            flags=("--reranking",), params=(("embedding", True), ("pooling_type", "rank"))
        )
    if workers := _workers(assignment):
        yield Setting(flags=("--rpc", ",".join(workers)), params=())
    if options.mmproj:
        yield _value("--mmproj", "mmproj.path", _beside(assignment, options, options.mmproj))
    if options.lora:
        pairs = [(_beside(assignment, options, item.path), item.scale) for item in options.lora]
        text = ",".join(f"{path}:{scale:g}" for path, scale in pairs)
        yield _value("--lora-scaled", "lora_adapters", text, [list(pair) for pair in pairs])


def _workers(assignment: Assignment) -> tuple[str, ...]:
    """Return where the ranks above 0 listen."""
    return tuple(f"{peer.address}:{peer.ports[0]}" for peer in assignment.spec.peers[1:])


def _value(flag: str, param: str, value: object, param_value: object = None) -> Setting:
    return Setting(
        flags=(flag, f"{value:g}" if isinstance(value, float) else str(value)),
        params=((param, value if param_value is None else param_value),),
    )


def _layers(options: LlamaCppOptions, devices: int) -> Setting:
    layers = options.n_gpu_layers
    if layers is None:
        layers = "all" if devices else 0
    number = {"auto": -1, "all": _ALL_LAYERS}[layers] if isinstance(layers, str) else layers
    # In numbers for both: `auto` and `all` are newer than many installed `llama-server`s.
    return _value("--n-gpu-layers", "n_gpu_layers", number)


def _model_path(assignment: Assignment, options: LlamaCppOptions) -> str:
    if options.model_file is None:
        return assignment.weights_path
    return str(PurePosixPath(assignment.weights_path) / options.model_file)


def _beside(assignment: Assignment, options: LlamaCppOptions, name: str) -> str:
    weights = PurePosixPath(assignment.weights_path)
    return str((weights if options.model_file else weights.parent) / name)
