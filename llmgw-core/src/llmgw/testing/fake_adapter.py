"""The fake engine as an adapter: the engine of supervision tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from llmgw.contracts.adapters import listed_adapters
from llmgw.contracts.engine import Assignment, EngineExit, EngineTraits, Launch, Probe
from llmgw.contracts.exposition import Exposition
from llmgw.contracts.options import EngineOptions, env_problems, option_problems
from llmgw.contracts.symptoms import explain
from llmgw.domain.catalog import Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.loads import EngineLoad, MemoryReport
from llmgw.domain.replicas import Failure
from llmgw.errors import Problem


class FakeOptions(EngineOptions):
    """The flags of `fake_engine.py`, with underscores."""

    ready_after: float = 0.0
    listen_after: float = 0.0
    health_lies: bool = False
    hang_completions: bool = False
    fail_completions: int = 0
    crash_every: int = 0
    crash_on: str = ""
    exit_after: float | None = None
    exit_code: int = 1
    ignore_term: bool = False
    drain: bool = False
    children: int = 0
    say: tuple[str, ...] = ()
    say_every: float = 0.0
    can_sleep: bool = False
    sleep_lies: bool = False
    wake_fails: bool = False
    tokens: int = 5
    token_delay: float = 0.0


class FakeEngineAdapter:
    """Launches `fake_engine.py` on this Python."""

    name = "fake"
    sleep_state: Probe | None = Probe(path="/is_sleeping")
    adapter_list = Probe(path="/v1/models")
    traits = EngineTraits(runs_on_cpu=True, stop_grace_s=2.0)
    program = str(Path(__file__).with_name("fake_engine.py"))

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        return (
            *option_problems(FakeOptions, profile.options, {}),
            *env_problems(profile.env, ("FAKE_",)),
        )

    def launch(self, assignment: Assignment) -> Launch:
        spec = assignment.spec
        given = FakeOptions.model_validate(dict(spec.options))
        words = [assignment.home.python or sys.executable, self.program]
        words += ["--host", assignment.bind_address, "--port", str(spec.ports[0])]
        for name in spec.served_names:
            words += ["--served-name", name]
        for option, value in given.model_dump(exclude_defaults=True).items():
            flag = "--" + option.replace("_", "-")
            for item in value if isinstance(value, tuple) else (value,):
                words += [flag] if item is True else [flag, str(item)]
        serves = spec.rank == 0
        return Launch(
            argv=(*words, "--say", f"serving {assignment.weights_path}"),
            env={**spec.env, "FAKE_ENGINE_KEY": assignment.credential.reveal()},
            secret_env=frozenset({"FAKE_ENGINE_KEY"}),
            ready=Probe(path="/health") if serves else None,
            warm_up=(
                Probe(
                    path="/v1/chat/completions",
                    method="POST",
                    body={"model": spec.served_names[0], "messages": [], "max_tokens": 1},
                ),
            )
            if serves
            else (),
            expect_models=spec.served_names if serves else (),
        )

    def read_load(self, page: str) -> EngineLoad:
        names = (
            "requests_running",
            "requests_waiting",
            "prompt_tokens_total",
            "generated_tokens_total",
        )
        seen = Exposition(page, *(f"fake_{name}" for name in names))
        return EngineLoad(
            running=seen.count("fake_requests_running"),
            waiting=seen.count("fake_requests_waiting"),
            prompt_tokens=seen.total("fake_prompt_tokens_total"),
            generated_tokens=seen.total("fake_generated_tokens_total"),
        )

    def explain_exit(self, end: EngineExit) -> Failure:
        return explain(end, ())

    def read_memory(self, lines: tuple[str, ...]) -> MemoryReport | None:
        """Read `took 512 MiB`, which `say` can have it say."""
        found = [float(words[1]) for line in lines if (words := line.split())[:1] == ["took"]]
        return MemoryReport(main_memory_mib=found[-1]) if found else None

    def read_adapters(self, spec: ShardSpec, body: str) -> Mapping[str, str]:  # noqa: ARG002
        return listed_adapters(body)

    def load_adapter(self, name: str, path: str) -> Probe:
        body = {"lora_name": name, "lora_path": path}
        return Probe(path="/v1/load_lora_adapter", method="POST", body=body)

    def unload_adapter(self, name: str) -> Probe:
        return Probe(path="/v1/unload_lora_adapter", method="POST", body={"lora_name": name})

    def adapter_model(self, spec: ShardSpec, name: str) -> str:  # noqa: ARG002
        return name

    def sleep_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        if level != 1 or not spec.options.get("can_sleep"):
            return ()
        return (Probe(path="/sleep?level=1", method="POST"),)

    def wake_requests(self, spec: ShardSpec, level: int) -> tuple[Probe, ...]:
        return (Probe(path="/wake_up", method="POST"),) if self.sleep_requests(spec, level) else ()

    def read_sleep_state(self, body: str) -> bool | None:
        said = json.loads(body).get("is_sleeping")
        return said if isinstance(said, bool) else None
