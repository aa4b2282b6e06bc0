"""llama.cpp's options under its own names (those of `llama-server`, with underscores).

What is not here cannot be set; what is in REFUSED is named with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from llmgw.contracts.options import EngineOptions, InWeights

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
Count = Annotated[int, Field(ge=1)]


def _on_off(value: object) -> object:
    # YAML reads a plain `on` or `off` as a boolean, so that the engine's own words arrive as one.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class LoraAdapter(EngineOptions):
    """One adapter, applied from the start; its scale can be changed by the engine's own API."""

    path: Annotated[InWeights, Field(pattern=r"^[^:,]+$")]  #: `llama-server` splits at these
    scale: float = 1.0


class LlamaCppOptions(EngineOptions):
    """None leaves a choice to the engine."""

    model_file: InWeights | None = None
    """The GGUF in a folder of weights; of a split file the first part."""

    ctx_size: Annotated[int, Field(ge=0)] | None = None
    """Tokens of context for all slots together; None or 0: the model's own."""
    parallel: Annotated[int, Field(ge=1, le=256)] | None = None
    """Slots: requests computed at a time. None: 4, sharing one context (`kv_unified`)."""
    kv_unified: bool | None = None
    """Slots share `ctx_size` instead of getting an equal part each."""
    batch_size: Count | None = None
    ubatch_size: Count | None = None
    """Inputs of embedding models must fit into it."""
    cache_type_k: CacheType | None = None
    cache_type_v: CacheType | None = None
    flash_attn: Annotated[Literal["on", "off", "auto"], BeforeValidator(_on_off)] | None = None
    cont_batching: bool | None = None
    cache_ram: Annotated[int, Field(ge=0)] = 0
    """MiB of RAM for prompts kept beside the slots. The engine's own default is 8192, which
    no memory plan knows of."""
    cache_reuse: Annotated[int, Field(ge=0)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None

    n_gpu_layers: Annotated[int, Field(ge=0)] | Literal["auto", "all"] | None = None
    """None: all layers, or none where the profile has no device."""
    split_mode: Literal["none", "layer", "row", "tensor"] | None = None
    tensor_split: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """Proportions, one per device."""
    main_gpu: Annotated[int, Field(ge=0)] | None = None
    """Counted among the replica's own devices."""
    rpc_server: Literal["ggml-rpc-server", "rpc-server"] = "ggml-rpc-server"
    """What serves on nodes above the first lies beside `llama-server`; older builds have the other
    name."""

    threads: Count | None = None
    threads_batch: Count | None = None
    threads_http: Count | None = None
    poll: Annotated[int, Field(ge=0, le=100)] | None = None
    """How eagerly threads spin while they wait; 0 sleeps."""
    numa: Literal["distribute", "isolate", "numactl"] | None = None
    repack: bool | None = None
    """False: weights keep their layout, which avoids kernels that crash on some CPUs."""
    warmup: bool | None = None

    jinja: bool | None = None
    chat_template: str | None = None
    """A built-in name or the template's text; None: the GGUF's own."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None

    embeddings: bool = False
    pooling: Literal["mean", "cls", "last", "rank"] | None = None
    reranking: bool = False

    lora: tuple[LoraAdapter, ...] = ()
    mmproj: InWeights | None = None

    rope_scaling: Literal["none", "linear", "yarn"] | None = None
    rope_freq_base: Annotated[float, Field(gt=0)] | None = None
    rope_freq_scale: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.reranking and self.pooling not in (None, "rank"):
            raise ValueError(f"reranking needs pooling: rank, got {self.pooling!r}")
        if self.ubatch_size and self.batch_size and self.ubatch_size > self.batch_size:
            raise ValueError(
                f"ubatch_size ({self.ubatch_size}) must be at most batch_size ({self.batch_size})"
            )
        return self

    @property
    def slots(self) -> int:
        return self.parallel or 4

    @property
    def shares_context(self) -> bool:
        """Whether slots share one context: as in the engine, if nobody chose their number."""
        return self.parallel is None if self.kv_unified is None else self.kv_unified


_PLACED = "llmgw chooses the address and the port"
_KEYED = "llmgw makes a key of its own for each engine"
_RUNS = "it lets requests run programs on the node"
_WEIGHTS = "the profile's `weights` say what is loaded, and the agent fetches it"
_NAMES = "the catalog's names and aliases are served"

REFUSED: Mapping[str, str] = {
    "host": _PLACED,
    "port": _PLACED,
    "reuse_port": "it hides that another program has the port",
    "api_prefix": _PLACED,
    "api_key": _KEYED,
    "api_key_file": _KEYED,
    "ssl_key_file": "the router reaches engines inside the fleet; TLS ends at the router",
    "ssl_cert_file": "the router reaches engines inside the fleet; TLS ends at the router",
    "tools": _RUNS,
    "agent": _RUNS,
    "mcp_servers_config": _RUNS,
    "mcp_servers_json": _RUNS,
    "ui_mcp_proxy": _RUNS,
    "model": _WEIGHTS,
    "model_url": _WEIGHTS,
    "hf_repo": _WEIGHTS,
    "hf_file": _WEIGHTS,
    "hf_token": _WEIGHTS,
    "alias": _NAMES,
    "models_dir": "one engine process serves one model",
    "models_preset": "one engine process serves one model",
    "metrics": "always on: the router reads the load from it",
    "fit": "always off: it would shrink the context behind the memory plan's back",
    "device": "the placement chooses the devices",
    "rpc": "give `nodes` and `fabric` in the profile: each rank gets its address",
    "sleep_idle_seconds": "the catalog's `idle_after` decides who sleeps",
    "slot_save_path": "it lets requests write files on the node",
    "media_path": "it lets requests read files of the node",
    "log_file": "the agent keeps the log",
    "draft": "the engine has dropped it",
}
