"""SGLang: one process tree per node of a replica; rank 0 serves."""

from __future__ import annotations

import re
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
from llmgw.errors import Problem
from llmgw_engine_sglang.argv import BOOTSTRAP, PORTS, serve_argv
from llmgw_engine_sglang.failures import explain_exit
from llmgw_engine_sglang.load import parse_load
from llmgw_engine_sglang.memory import read_memory
from llmgw_engine_sglang.options import REFUSED, REFUSED_ENV, SglangOptions
from llmgw_engine_sglang.pairing import BootstrapPairing

_KEY = "LLMGW_SGLANG_KEY"
_ENV = ("SGLANG_", "NCCL_", "GLOO_", "UCX_", "OMP_", "TORCH_", "MC_")
_WARM_UP_S = 1800.0  # kernels may be compiled at the first request
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")


class SglangAdapter:
    """Serves safetensors weights on GPUs of one or more nodes."""

    name = "sglang"
    distributions = ("sglang",)
    # After SIGTERM it ends open requests without limit, but goes on taking new ones. A rank above
    # 0 ignores the signal and leaves together with rank 0.
    sleep_state: Probe | None = None  #: it has no such endpoint (0.5.23)
    adapter_list = Probe(path="/v1/models")
    pairing = BootstrapPairing()
    traits = EngineTraits(
        ports_per_shard=PORTS,
        meeting_port=BOOTSTRAP,
        drains_by_itself=True,
        devices=frozenset({"nvidia", "amd"}),
        runs_on_cpu=True,
    )

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        """Check options, environment, interpreter, and that the ranks come out even."""
        return (
            *option_problems(SglangOptions, profile.options, REFUSED),
            *env_problems(profile.env, _ENV, REFUSED_ENV),
            *_command_problems(profile),
            *_rank_problems(profile),
            *_adapter_problems(profile),
            *_role_problems(profile),
        )

    def launch(self, assignment: Assignment) -> Launch:
        """Launch one rank; those above 0 say that they are healthy long before rank 0 serves."""
        spec = assignment.spec
        options = _options(spec)
        serves = spec.rank == self.traits.serves_on_rank
        return Launch(
            argv=serve_argv(assignment, options),
            env=_env(assignment),
            # Hugging Face's are left out of the way too: the weights are here, verified.
            scrub_env=("SGLANG_", "SGL_", "HF_", *VISIBILITY, "NCCL_"),
            secret_env=frozenset({_KEY}),
            ready=Probe(path="/health") if serves else None,
            warm_up=_warm_up(spec, options) if serves else (),
            expect_models=spec.served_names[:1] if serves else (),
        )

    def read_load(self, page: str) -> EngineLoad:
        return parse_load(page)

    def explain_exit(self, end: EngineExit) -> Failure:
        return explain_exit(end)

    def read_memory(self, lines: tuple[str, ...]) -> MemoryReport | None:
        return read_memory(lines)

    def batch_size(self, spec: ShardSpec) -> int | None:
        """Return `max_running_requests`; without it the device decides."""
        return _options(spec).max_running_requests

    def read_adapters(self, spec: ShardSpec, body: str) -> Mapping[str, str]:
        """Read `/v1/models`: an adapter's entry names its parent, and its folder as its root."""
        static = {item.name for item in _options(spec).lora_paths}
        return {name: path for name, path in listed_adapters(body).items() if name not in static}

    def load_adapter(self, name: str, path: str) -> Probe:
        return _order("/load_lora_adapter", lora_name=name, lora_path=path)

    def unload_adapter(self, name: str) -> Probe:
        """Return the order to drop it, which waits for the requests that have it."""
        return _order("/unload_lora_adapter", lora_name=name)

    def adapter_model(self, spec: ShardSpec, name: str) -> str:
        """Return `base:adapter`; a name alone would be taken for the model's own."""
        return f"{spec.served_names[0]}:{name}"

    def sleep_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        """Return (), for an engine that could not wake: only level 1, with weights kept in RAM.

        From level 2 the weights would have to be loaded again by path, and the engine would
        serve noise until then.
        """
        if level != 1 or not _options(spec).enable_weights_cpu_backup:
            return ()
        return (_order("/release_memory_occupation"),)

    def wake_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        if not self.sleep_requests(spec, level):
            return ()
        return (_order("/resume_memory_occupation"),)

    def read_sleep_state(self, body: str) -> bool | None:  # noqa: ARG002 -- it never says
        return None


def _options(spec: ShardSpec) -> SglangOptions:
    return SglangOptions.model_validate(dict(spec.options))


def _env(assignment: Assignment) -> dict[str, str]:
    spec = assignment.spec
    env = {
        **spec.env,
        _KEY: assignment.credential.reveal(),
        "HF_HUB_OFFLINE": "1",
        # Otherwise each check generates a token and takes a second. That the engine still
        # computes is seen by its token counter.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        **visible_devices(spec.devices),
    }
    if not spec.devices:
        env["SGLANG_USE_CPU_ENGINE"] = "1"
    if spec.peers:
        env["SGLANG_HOST_IP"] = spec.peers[spec.rank].address
    return env


def _command_problems(profile: Profile) -> list[Problem]:
    if not profile.command or _PYTHON.fullmatch(profile.command[-1]):
        return []
    return [
        Problem(
            path="command",
            message="must be the Python of the environment that has sglang, since `sglang` itself "
            "takes its key where every user of the node can read it, "
            f"got {profile.command[-1]!r}",
        )
    ]


def _rank_problems(profile: Profile) -> list[Problem]:
    world, count = profile.parallel.world_size, profile.devices.count
    problems = []
    if count > 1 and world != count:
        problems.append(
            Problem(
                path="parallel",
                message=f"SGLang uses tensor x pipeline x data devices: must be {count}, got {world}",
            )
        )
    if profile.nodes > 1 and profile.parallel.data > 1:
        problems.append(
            Problem(
                path="parallel.data",
                message="must be 1 over several nodes, with `options.attn_dp_size` for attention, "
                f"got {profile.parallel.data}",
            )
        )
    if profile.options.get("enable_memory_saver") and count == 0:
        problems.append(Problem(path="options.enable_memory_saver", message="needs a device"))
    return problems


def _adapter_problems(profile: Profile) -> list[Problem]:
    if profile.adapters and profile.options.get("enable_lora") is not True:
        return [Problem(path="adapters", message="need `options.enable_lora: true`")]
    return []


def _role_problems(profile: Profile) -> list[Problem]:
    if profile.role is None:
        told = ("disaggregation_transfer_backend", "disaggregation_ib_device")
        return [
            Problem(path=f"options.{name}", message="needs a role, prefill or decode")
            for name in told
            if profile.options.get(name) is not None
        ]
    if profile.options.get("is_embedding"):
        message = "an embedding model generates nothing, so it has no roles"
        return [Problem(path="options.is_embedding", message=message)]
    return []


def _warm_up(spec: ShardSpec, options: SglangOptions) -> tuple[Probe, ...]:
    model = spec.served_names[0]
    if spec.role is not None:
        # Half a pair generates nothing by itself; the router's first request is the proof.
        return (Probe(path="/v1/models"),)
    if options.is_embedding:
        return (_post("embeddings", model, input="Hi"),)
    chat = _post(
        "chat/completions", model, messages=[{"role": "user", "content": "Hi"}], max_tokens=1
    )
    return (chat, _post("completions", model, prompt="Hi", max_tokens=1))


def _post(path: str, model: str, **body: object) -> Probe:
    return Probe(
        path=f"/v1/{path}", method="POST", body={"model": model, **body}, timeout_s=_WARM_UP_S
    )


def _order(path: str, **body: object) -> Probe:
    return Probe(path=path, method="POST", body=body, timeout_s=300.0)
