"""vLLM's options under its own names (those of `vllm serve`, with underscores).

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


class LoraModule(EngineOptions):
    """An adapter beside the weights, served under a name of its own."""

    name: Name
    path: InWeights


class KvTransfer(EngineOptions):
    """How KV caches travel between a prefill and a decode engine (`--kv-transfer-config`)."""

    kv_connector: Name = "NixlConnector"
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    kv_buffer_device: Literal["cuda", "cpu"] | None = None
    kv_load_failure_policy: Literal["recompute", "fail"] | None = None
    kv_connector_extra_config: Settings | None = None


class VllmOptions(EngineOptions):
    """None leaves a choice to the engine."""

    max_model_len: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Tokens of one request; more than the model's own is an error at start."""
    max_num_seqs: Count | None = None
    """Requests computed at a time."""
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the whole device, weights included; two engines on a device must add up."""
    kv_cache_memory_bytes: Count | None = None
    """KV cache per device, exactly; comes before the share."""
    cpu_kvcache_space: Annotated[float, Field(gt=0)] | None = None
    """GiB of KV cache on a CPU (the engine's VLLM_CPU_KVCACHE_SPACE)."""
    block_size: Count | None = None
    kv_cache_dtype: Name | None = None
    cpu_offload_gb: Annotated[float, Field(ge=0)] | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    scheduling_policy: Literal["fcfs", "priority"] | None = None

    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = None
    quantization: Name | None = None
    load_format: (
        Literal[
            "auto",
            "safetensors",
            "fastsafetensors",
            "runai_streamer",
            "sharded_state",
            "bitsandbytes",
            "mistral",
            "dummy",
        ]
        | None
    ) = None
    """Formats that unpickle (`pt`, `npcache`) are left out: they run what they load."""
    model_impl: Literal["auto", "vllm", "transformers"] | None = None
    tokenizer_mode: Literal["auto", "hf", "slow", "mistral"] | None = None
    runner: Literal["auto", "generate", "pooling"] | None = None
    convert: Literal["auto", "none", "embed", "classify"] | None = None
    seed: int | None = None
    enforce_eager: bool = False
    """No compilation: the start takes half as long, the answers take longer."""
    compilation_config: Settings | None = None
    attention_backend: Name | None = None

    distributed_executor_backend: Literal["mp", "ray", "uni"] | None = None
    disable_custom_all_reduce: bool = False
    enable_expert_parallel: bool = False
    all2all_backend: Name | None = None

    generation_config: Literal["auto", "vllm"] | None = None
    override_generation_config: Settings | None = None
    chat_template: InWeights | None = None
    chat_template_content_format: Literal["auto", "string", "openai"] | None = None
    default_chat_template_kwargs: Settings | None = None
    tool_call_parser: Name | None = None
    """Without it, requests with tools are refused by the engine."""
    reasoning_parser: Name | None = None
    limit_mm_per_prompt: Settings | None = None
    max_logprobs: Annotated[int, Field(ge=-1)] | None = None

    speculative_config: Settings | None = None
    enable_lora: bool = False
    max_loras: Count | None = None
    max_lora_rank: Count | None = None
    lora_modules: tuple[LoraModule, ...] = ()

    enable_sleep_mode: bool = False
    """The engine can give device memory back while idle. Needs CUDA or HIP."""
    kv_transfer_config: KvTransfer | None = None
    """How caches travel. With a `role` the default is NIXL."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lora_modules and not self.enable_lora:
            raise ValueError("lora_modules needs enable_lora: true")
        if (self.runner == "pooling") and (self.tool_call_parser or self.reasoning_parser):
            raise ValueError("a pooling model has no tool_call_parser or reasoning_parser")
        for field in ("speculative_config", "override_generation_config", "compilation_config"):
            if unsafe := _UNSAFE_KEYS & set(getattr(self, field) or ()):
                raise ValueError(f"{field} must not have {min(unsafe)!r}: it runs other code")
        return self


_UNSAFE_KEYS = {"trust_remote_code", "code_revision", "inductor_passes", "custom_passes"}

_PLACED = "llmgw chooses the address and the port"
_KEYED = "llmgw makes a key of its own for each engine"
_WEIGHTS = "the profile's `weights` say what is loaded, and the agent fetches it"
_CODE = "it runs code from outside the engine"
_FILES = "it lets requests read files of the node"
_RANKS = "give `parallel` and `nodes` in the profile: each rank gets its own"
_LOGGED = "prompts and answers are never logged"
_TLS = "TLS ends at the router"

REFUSED: Mapping[str, str] = {
    "host": _PLACED,
    "port": _PLACED,
    "uds": _PLACED,
    "root_path": _PLACED,
    "grpc": "requests come by HTTP",
    "api_key": _KEYED,
    "ssl_keyfile": _TLS,
    "ssl_certfile": _TLS,
    "ssl_ca_certs": _TLS,
    "model": _WEIGHTS,
    "tokenizer": _WEIGHTS,
    "revision": _WEIGHTS,
    "download_dir": _WEIGHTS,
    "hf_token": _WEIGHTS,
    "served_model_name": "the catalog's names and aliases are served",
    "trust_remote_code": "it runs code that comes with the weights; use a model that the engine "
    "knows by itself, or `model_impl: transformers`",
    "code_revision": _CODE,
    "middleware": _CODE,
    "worker_cls": _CODE,
    "worker_extension_cls": _CODE,
    "scheduler_cls": _CODE,
    "logits_processors": _CODE,
    "tool_parser_plugin": _CODE,
    "reasoning_parser_plugin": _CODE,
    "io_processor_plugin": _CODE,
    "model_class_overrides": _CODE,
    "tool_server": "it lets requests run tools on the node",
    "config": "all options stand in the profile, where they are checked",
    "allowed_local_media_path": _FILES,
    "trust_request_chat_template": "it lets requests bring templates of their own",
    "enable_log_requests": _LOGGED,
    "enable_log_outputs": _LOGGED,
    "log_config_file": "the agent keeps the log",
    "tensor_parallel_size": _RANKS,
    "pipeline_parallel_size": _RANKS,
    "data_parallel_size": _RANKS,
    "data_parallel_rank": _RANKS,
    "nnodes": _RANKS,
    "node_rank": _RANKS,
    "master_addr": _RANKS,
    "master_port": _RANKS,
    "headless": _RANKS,
    "device_ids": "the placement chooses the devices",
    "shutdown_timeout": "it follows from the profile's `stop_grace`",
    "enable_auto_tool_choice": "it follows from `tool_call_parser`",
}

REFUSED_ENV: Mapping[str, str] = {
    "VLLM_API_KEY": _KEYED,
    "VLLM_PORT": _PLACED,
    "VLLM_HOST_IP": _PLACED,
    "VLLM_SERVER_DEV_MODE": "it opens management paths; `enable_sleep_mode` does so where it is safe",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it lets requests load files of the node",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": _CODE,
    "VLLM_CPU_KVCACHE_SPACE": "use `options.cpu_kvcache_space`",
}
