from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from llmgw.contracts.options import EngineOptions, InWeights, env_problems, option_problems

REFUSED = {"api_key": "llmgw makes one"}


class Options(EngineOptions):
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    adapter: InWeights | None = None


def problems(**given: object) -> list[str]:
    return [str(problem) for problem in option_problems(Options, given, REFUSED)]


def test_good_options_have_no_problem() -> None:
    assert problems(max_model_len=8, adapter="lora/a.gguf") == []


def test_all_problems_are_found_at_once_with_path_and_value() -> None:
    assert problems(max_model_len=0, adapter="/etc/passwd") == [
        "options.max_model_len: input should be greater than or equal to 1, got 0",
        (
            "options.adapter: must be a path below the folder of the weights, without '..', "
            "got '/etc/passwd'"
        ),
    ]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "", "."])
def test_a_file_outside_the_weights_is_a_problem(path: str) -> None:
    assert len(problems(adapter=path)) == 1


def test_a_misspelt_option_gets_a_suggestion() -> None:
    assert problems(max_model_length=8) == [
        "options.max_model_length: unknown option 'max_model_length', did you mean 'max_model_len'?"
    ]


@pytest.mark.parametrize("spelling", ["api_key", "api-key", "--api-key", "API_KEY"])
def test_a_refused_option_is_named_with_the_reason_however_it_is_spelt(spelling: str) -> None:
    assert problems(**{spelling: "s3cret"}) == [
        f"options.{spelling}: {spelling!r} is refused: llmgw makes one"
    ]


def test_only_variables_that_tune_the_engine_are_allowed() -> None:
    given = dict.fromkeys(("NCCL_DEBUG", "NCCL_NET_PLUGIN", "LD_PRELOAD", "PATH"), "x")
    assert [problem.path for problem in env_problems(given, ("NCCL_", "OMP_"))] == [
        "env.NCCL_NET_PLUGIN",
        "env.LD_PRELOAD",
        "env.PATH",
    ]


def test_a_refused_variable_is_named_with_the_reason() -> None:
    (problem,) = env_problems({"NCCL_X": "1"}, ("NCCL_",), {"NCCL_X": "we set it"})
    assert str(problem) == "env.NCCL_X: is refused: we set it"
