"""The kit itself: the fake engine's adapter passes it, and adapters with a fault do not."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.contracts.engine import Assignment, EngineExit, Launch
from llmgw.domain.catalog import Profile
from llmgw.domain.loads import EngineLoad
from llmgw.domain.replicas import Failure, FailureCause
from llmgw.errors import Problem
from llmgw.testing.engine import EngineContract, ended, no_io, profile
from llmgw.testing.fake_adapter import FakeEngineAdapter

PAGE = (
    "fake_requests_running 1\nfake_requests_waiting 0\n"
    "fake_prompt_tokens_total 2\nfake_generated_tokens_total 9\n"
)


class TestFakeEngine(EngineContract):
    adapter = FakeEngineAdapter()
    accepted = (
        profile("fake", options={"ready_after": 1.5, "children": 2, "say": ["a", "b"]}),
        profile("fake", nodes=2, devices={"count": 4}, parallel={"tensor": 4}),
    )
    rejected = (
        (profile("fake", options={"reddy_after": 1}), "options.reddy_after"),
        (profile("fake", options={"children": "many"}), "options.children"),
    )
    metrics_pages = (PAGE,)
    exits = (ended(-9, "bye"),)


class Careless(FakeEngineAdapter):
    """Has every fault that the kit looks for."""

    def check(self, profile: Profile) -> tuple[Problem, ...]:
        Path(__file__).stat()
        return ()

    def launch(self, assignment: Assignment) -> Launch:
        launch = super().launch(assignment)
        key = assignment.credential.reveal()
        return replace(
            launch, argv=(*launch.argv, key, "29999"), env={"PYTHONPATH": "x"}, warm_up=()
        )

    def read_load(self, page: str) -> EngineLoad:
        return EngineLoad(running=page.count("running 1"), waiting=0)

    def explain_exit(self, end: EngineExit) -> Failure:
        return Failure(cause=FailureCause.UNKNOWN, message="")


@pytest.mark.parametrize(
    "rule",
    [
        "test_rejected_profiles_have_a_problem_where_it_is",
        "test_an_unknown_option_is_a_problem",
        "test_a_variable_that_loads_code_is_a_problem",
        "test_launches_are_lists_of_words_without_secrets",
        "test_an_engine_that_serves_asks_for_the_key",
        "test_the_environment_chooses_no_code",
        "test_no_port_is_used_that_was_not_given",
        "test_exactly_the_serving_rank_is_probed",
        "test_numbers_that_are_none_do_not_read_as_zero",
        "test_known_ends_are_recognised",
        "test_any_end_is_explained_in_one_line",
    ],
)
def test_a_careless_adapter_breaks_the_rule(rule: str) -> None:
    class Kit(TestFakeEngine):
        adapter = Careless()

    with pytest.raises((AssertionError, pytest.fail.Exception, ExceptionGroup)):
        getattr(Kit(), rule)()


def test_a_careless_reading_of_foreign_pages_breaks_the_rule() -> None:
    class Kit(TestFakeEngine):
        adapter = Careless()

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Kit().test_other_pages_do_not_read_as_an_idle_engine()


def test_opening_a_file_is_noticed() -> None:
    with pytest.raises(AssertionError, match="open"), no_io():
        Path("/proc/self/status").read_text()


def test_starting_a_process_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"subprocess\.Popen"), no_io():
        subprocess.run(["true"], check=True)


def test_io_outside_the_guard_is_not_its_business() -> None:
    Path("/proc/self/status").read_text()
    with no_io():
        pass
