"""What somebody types first: READMEs, docs/first-run.md, docs/configuration.md."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.testing.machines import Machine, Network

pytestmark = pytest.mark.slow


def newcomer(network: Network, address: str) -> Machine:
    """A machine with Python, and an environment for what pip installs."""
    made = network.machine(f"desk-{address.rpartition('.')[2]}", address)
    made.type("python3 -m venv venv")
    made.type("export PATH=$PWD/venv/bin:$PATH")
    return made


def test_the_packages_are_installed_and_serve_as_their_readmes_and_the_first_run_say(
    network: Callable[..., Network], page: Any, asking: Callable[..., str]
) -> None:
    machines = network()
    desk, lab = newcomer(machines, "10.0.0.5"), machines.machine("lab", "10.0.0.7")
    engine = "fake_engine --host 10.0.0.7 --port 8000 --served-name llama-3.1-8b --say serves"
    lab.start(f"{sys.executable} -m llmgw.testing.{engine}", shows="serves")

    core = page("llmgw-core/README.md")
    core.do("llmgw-core", desk)
    asking(desk, "default")
    core.running.popitem()[1].interrupt()
    core.do("llmgw-core", desk)
    asking(desk, "smollm2")
    core.finish()

    first = page("docs/first-run.md")
    first.skip("First run")  # in a clone: the next test
    said = first.do("First run", desk, desk, desk, desk)
    assert "data: [DONE]" in said
    assert "smollm2" in said
    first.finish()

    for engine in ("llamacpp", "vllm", "sglang"):
        readme = page(f"llmgw-engine-{engine}/README.md")
        readme.do(f"llmgw-engine-{engine}", desk)
        readme.finish()


def test_a_clone_serves_by_one_command(
    network: Callable[..., Network], clone: Path, page: Any, asking: Callable[..., str]
) -> None:
    desk = newcomer(network(), "10.0.0.5")
    shutil.copytree(clone, desk.home, dirs_exist_ok=True)
    readme = page("README.md")
    assert readme.commands[0] == page("docs/first-run.md").commands[0]
    readme.do("Try it", desk)
    asking(desk, "smollm2")
    readme.skip("Try it")  # the tests, all that CI runs: by CI itself
    readme.finish()


def test_a_configuration_is_checked_and_served(
    opt: Path, network: Callable[..., Network], page: Any
) -> None:
    server = network().machine("gw", "10.0.0.1", opt=opt)
    configuration = page("docs/configuration.md")
    said = configuration.do("Configuration", server, server)
    assert said == "llmgw.yaml: ok (1 model, 1 endpoint)\n"
    assert "qwen3" in server.type("curl --silent --fail http://127.0.0.1:8080/v1/models")
    # The same command on a file that is wrong: its output is compared by the agent's e2e tests.
    configuration.skip("The file")
    configuration.finish()
