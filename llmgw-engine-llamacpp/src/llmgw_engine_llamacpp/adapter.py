"""llama.cpp: one process per replica, on a CPU or on the devices of one node; by RPC of more."""

from __future__ import annotations

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
from llmgw_engine_llamacpp.argv import launcher_argv, server_argv, worker_argv
from llmgw_engine_llamacpp.failures import explain_exit
from llmgw_engine_llamacpp.load import parse_load
from llmgw_engine_llamacpp.memory import read_memory
from llmgw_engine_llamacpp.options import REFUSED, LlamaCppOptions

_KEY = "LLAMA_API_KEY"
_ENV = ("GGML_", "OMP_", "GOMP_")
# Nearly every flag has a twin among them.
_SCRUBBED = ("LLAMA_", "GGML_", "HF_", *VISIBILITY)
_EXIT_S = 5.0  # left of the grace for what is not waiting: leaving the process and being reaped
_WARM_UP_S = 600.0  # the first prompt on a slow CPU


class LlamaCppAdapter:
    """Serves GGUF weights by the `xllamacpp` wheel, or by a `llama-server` of the node."""

    name = "llamacpp"
    distributions = ("xllamacpp",)
    traits = EngineTraits(
        cancels_plain_requests=False,
        # Our launcher does; but `llama-server` hangs on a signal with a request in flight.
        drains_by_itself=False,
        devices=frozenset({"nvidia", "amd"}),
        runs_on_cpu=True,
    )

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        """Check options, environment, and that one process is enough."""
        problems = [
            *option_problems(LlamaCppOptions, profile.options, REFUSED),
            *env_problems(profile.env, _ENV),
        ]
        if profile.nodes > 1 and not (profile.command and profile.fabric):
            problems.append(
                Problem(
                    path="nodes",
                    message="several nodes need `command`, a llama-server built with GGML_RPC, and "
                    "`fabric`: its protocol between nodes has neither key nor encryption, "
                    f"got {profile.nodes}",
                )
            )
        if profile.parallel.world_size > 1:
            problems.append(
                Problem(
                    path="parallel",
                    message="llama.cpp is one process: give `devices.count` and, if need be, "
                    "`options.split_mode` and `options.tensor_split` instead",
                )
            )
        split = profile.options.get("tensor_split")
        if isinstance(split, list | tuple) and len(split) != profile.devices.count:
            problems.append(
                Problem(
                    path="options.tensor_split",
                    message=f"must have one part per device ({profile.devices.count}), "
                    f"got {len(split)}",
                )
            )
        return tuple(problems)

    def launch(self, assignment: Assignment) -> Launch:
        """Launch by the profile's `command` if it has one, else by our launcher."""
        spec = assignment.spec
        devices = visible_devices(spec.devices)
        options = LlamaCppOptions.model_validate(dict(spec.options))
        if spec.rank != self.traits.serves_on_rank:
            return Launch(
                argv=worker_argv(assignment, options),
                env={**spec.env, **devices},
                scrub_env=_SCRUBBED,
            )
        grace_s = spec.stop_grace_s or self.traits.stop_grace_s
        if assignment.home.command:
            argv = server_argv(assignment, options)
        else:
            argv = launcher_argv(assignment, options, drain_s=max(1.0, grace_s - _EXIT_S))
        return Launch(
            argv=argv,
            env={
                **spec.env,
                **devices,
                _KEY: assignment.credential.reveal(),
            },
            scrub_env=_SCRUBBED,
            secret_env=frozenset({_KEY}),
            ready=Probe(path="/health"),
            warm_up=_warm_up(spec.served_names[0], options),
            expect_models=spec.served_names[:1],
        )

    def read_load(self, page: str) -> EngineLoad:
        return parse_load(page)

    def explain_exit(self, end: EngineExit) -> Failure:
        return explain_exit(end)

    def read_memory(self, lines: tuple[str, ...]) -> MemoryReport | None:
        return read_memory(lines)

    def batch_size(self, spec: ShardSpec) -> int:
        """Return the number of slots; further requests wait in the engine, without limit."""
        return LlamaCppOptions.model_validate(dict(spec.options)).slots


def _warm_up(model: str, options: LlamaCppOptions) -> tuple[Probe, ...]:
    """Return the request that this kind of model surely answers, then those it may."""
    chat = _post("chat/completions", model, messages=[{"role": "user", "content": "Hi"}])
    text = _post("completions", model, prompt="Hi")
    embedding = _post("embeddings", model, input="Hi")
    if options.reranking:
        return (_post("rerank", model, query="Hi", documents=["Hi"]),)
    # A chat would succeed here too, but prove nothing about pooling.
    return (embedding,) if options.embeddings else (chat, text, embedding)


def _post(path: str, model: str, **body: object) -> Probe:
    if path.endswith("completions"):
        body = {**body, "max_tokens": 1}
    return Probe(
        path=f"/v1/{path}",
        method="POST",
        body={"model": model, **body},
        timeout_s=_WARM_UP_S,
    )
