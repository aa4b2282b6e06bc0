"""SGLang's options under its own names (those of `sglang serve`, with underscores).

What is not here cannot be set; what is in REFUSED is named with the reason. A new option of a
new version is added here with its type, and is then checked before minutes of loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from llmgw.contracts.options import EngineOptions, InWeights

Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Settings = Mapping[str, Any]


class LoraPath(EngineOptions):
    """An adapter beside the weights, served under a name of its own."""

    name: Name
    path: InWeights


class SglangOptions(EngineOptions):
    """None leaves a choice to the engine."""

    context_length: Count | None = None
    """Tokens of one request; None: the model's own."""
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the device for weights and KV cache."""
    max_total_tokens: Count | None = None
    """KV cache in tokens, exactly."""
    max_running_requests: Count | None = None
    """Requests computed at a time."""
    max_queued_requests: Count | None = None
    """Beyond it the engine answers 503."""
    chunked_prefill_size: Annotated[int, Field(ge=-1)] | None = None
    max_prefill_tokens: Count | None = None
    schedule_policy: (
        Literal[
            "lpm",
            "random",
            "fcfs",
            "dfs-weight",
            "lof",
            "priority",
            "routing-key",
            "hrrn",
            "shortest-prefill-first",
        ]
        | None
    ) = None
    schedule_conservativeness: Annotated[float, Field(gt=0)] | None = None
    page_size: Count | None = None
    kv_cache_dtype: Name | None = None
    cpu_offload_gb: Annotated[int, Field(ge=0)] | None = None
    disable_radix_cache: bool = False
    """No reuse of common prefixes."""
    enable_hierarchical_cache: bool = False
    hicache_ratio: Annotated[float, Field(gt=1)] | None = None
    hicache_size: Annotated[int, Field(ge=0)] | None = None
    disable_overlap_schedule: bool = False

    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = None
    quantization: Name | None = None
    load_format: (
        Literal[
            "auto",
            "safetensors",
            "dummy",
            "sharded_state",
            "gguf",
            "bitsandbytes",
            "layered",
            "mistral",
            "fastsafetensors",
        ]
        | None
    ) = None
    """Formats that unpickle (`pt`, `npcache`) are left out: they run what they load."""
    model_impl: Literal["auto", "sglang", "transformers"] | None = None
    json_model_override_args: Settings | None = None
    is_embedding: bool = False
    random_seed: int | None = None
    attention_backend: Name | None = None
    sampling_backend: Name | None = None
    grammar_backend: Name | None = None
    disable_cuda_graph: bool = False
    enable_torch_compile: bool = False

    chat_template: InWeights | None = None
    default_chat_template_kwargs: Settings | None = None
    tool_call_parser: Name | None = None
    """Without it, tool calls come back as plain text."""
    reasoning_parser: Name | None = None
    sampling_defaults: Literal["openai", "model"] | None = None
    enable_multimodal: bool | None = None

    ep_size: Count | None = None
    attn_dp_size: Count | None = None
    enable_dp_attention: bool = False
    enable_dp_lm_head: bool = False
    moe_a2a_backend: Name | None = None
    moe_runner_backend: Name | None = None
    disable_custom_all_reduce: bool = False
    dist_timeout: Count | None = None
    watchdog_timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which a forward pass counts as stuck and the engine ends itself."""

    speculative_algorithm: Name | None = None
    speculative_draft_model_path: InWeights | None = None
    speculative_num_steps: Count | None = None
    speculative_eagle_topk: Count | None = None
    speculative_num_draft_tokens: Count | None = None

    enable_lora: bool = False
    max_lora_rank: Count | None = None
    max_loras_per_batch: Count | None = None
    lora_paths: tuple[LoraPath, ...] = ()

    enable_memory_saver: bool = False
    """The engine can give device memory back while idle."""
    enable_weights_cpu_backup: bool = False
    """Keeps the weights in RAM meanwhile, so that it can wake."""

    disaggregation_transfer_backend: (
        Literal["mooncake", "nixl", "ascend", "mori", "mooncake_tcp"] | None
    ) = None
    """How caches travel between engines with a role."""
    disaggregation_ib_device: Annotated[str, Field(pattern=r"^[A-Za-z0-9_,]+$")] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lora_paths and not self.enable_lora:
            raise ValueError("lora_paths needs enable_lora: true")
        if self.enable_weights_cpu_backup and not self.enable_memory_saver:
            raise ValueError("enable_weights_cpu_backup needs enable_memory_saver: true")
        if self.is_embedding and (self.tool_call_parser or self.reasoning_parser):
            raise ValueError("an embedding model has no tool_call_parser or reasoning_parser")
        return self


_PLACED = "llmgw chooses the address and the port"
_KEYED = "llmgw makes a key of its own for each engine"
_WEIGHTS = "the profile's `weights` say what is loaded, and the agent fetches it"
_CODE = "it runs code from outside the engine"
_RANKS = "give `parallel` and `nodes` in the profile: each rank gets its own"
_DEVICES = "the placement chooses the devices"
_TLS = "TLS ends at the router"
_WRITES = "it writes prompts or tensors to files of the node"

REFUSED: Mapping[str, str] = {
    "host": _PLACED,
    "port": _PLACED,
    "nccl_port": _PLACED,
    "grpc_port": _PLACED,
    "fastapi_root_path": _PLACED,
    "api_key": _KEYED,
    "admin_api_key": _KEYED,
    "ssl_keyfile": _TLS,
    "ssl_certfile": _TLS,
    "ssl_ca_certs": _TLS,
    "model_path": _WEIGHTS,
    "tokenizer_path": _WEIGHTS,
    "revision": _WEIGHTS,
    "download_dir": _WEIGHTS,
    "served_model_name": "the catalog's name is served",
    "trust_remote_code": "it runs code that comes with the weights; use a model that the engine "
    "knows by itself, or `model_impl: transformers`",
    "custom_weight_loader": _CODE,
    "custom_sigquit_handler": _CODE,
    "enable_custom_logit_processor": "it lets requests bring code of their own",
    "forward_hooks": _CODE,
    "stat_loggers": _CODE,
    "sidecar": _CODE,
    "tool_server": "it lets requests run tools on the node",
    "trust_request_chat_template": "it lets requests bring templates of their own",
    "delete_ckpt_after_loading": "it deletes the weights that the agent keeps",
    "file_storage_path": _WRITES,
    "crash_dump_folder": _WRITES,
    "debug_tensor_dump_output_folder": _WRITES,
    "export_metrics_to_file": _WRITES,
    "log_requests": "prompts and answers are never logged",
    "config": "all options stand in the profile, where they are checked",
    "tp_size": _RANKS,
    "tensor_parallel_size": _RANKS,
    "pp_size": _RANKS,
    "dp_size": _RANKS,
    "nnodes": _RANKS,
    "node_rank": _RANKS,
    "dist_init_addr": _RANKS,
    "gated_launch_port": _RANKS,
    "disaggregation_bootstrap_port": _PLACED,
    "disaggregation_mode": "give the profile a `role`, prefill or decode: the router must know it",
    "device": _DEVICES,
    "base_gpu_id": _DEVICES,
    "gpu_id_step": _DEVICES,
    "skip_server_warmup": "its warm-up is what proves that the engine generates",
    "enable_metrics": "always on: the router reads the load from it",
    "enable_cache_report": "always on: answers say how much of a prompt was cached",
}

REFUSED_ENV: Mapping[str, str] = {
    "SGLANG_HOST_IP": _PLACED,
    "SGLANG_PORT": _PLACED,
    "SGLANG_USE_CPU_ENGINE": _DEVICES,
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "off, or each health check would take a second",
}
