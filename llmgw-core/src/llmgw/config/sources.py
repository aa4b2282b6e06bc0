"""What the environment and the command line say, as nested data like a file's."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from llmgw.config.documents import Steps, path_text
from llmgw.config.problems import fields_at, unknown_name
from llmgw.config.server import ServerSettings
from llmgw.errors import Problem

PREFIX = "LLMGW_"
#: Variables of other parts of llmgw, which a server that inherits them has no business with.
_OTHERS = ("LLMGW_AGENT__", "LLMGW_TEST_", "LLMGW_VLLM_", "LLMGW_SGLANG_", "LLMGW_LLAMACPP_")
_OTHER_NAMES = frozenset(
    {
        "LLMGW_API_KEY",
        "LLMGW_CONFIG",
        "LLMGW_CONTEXT",
        "LLMGW_REPLICA",
        "LLMGW_SERVER",
        "LLMGW_TOKEN",
        "LLMGW_TOKEN_FILE",
    }
)


class _EnvironmentSettings(ServerSettings, BaseSettings):
    """Tells pydantic-settings which variables there are; never instantiated."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid")


def environment_data(
    env: Mapping[str, str],
) -> tuple[dict[str, object], dict[Steps, str], list[Problem]]:
    """Return what `LLMGW_…` variables say: data, the variable behind each value, and problems.

    `LLMGW_CONTROL__INTERVAL=10s` sets `control.interval`; lists and mappings are JSON. One
    variable is read at a time, so that each mistake names its own.
    """
    data: dict[str, object] = {}
    origins: dict[Steps, str] = {}
    problems: list[Problem] = []
    for name in sorted(env):
        if not name.upper().startswith(PREFIX) or _is_of_another_part(name.upper()):
            continue
        try:
            said = _read_one(name, env[name])
        except (SettingsError, ValueError):
            problems.append(
                Problem(path=name, message="must be JSON where a list or a mapping is wanted")
            )
            continue
        if not said:
            first = name[len(PREFIX) :].split("__")[0].lower()
            known = fields_at(ServerSettings, ()) or ()
            problems.append(Problem(path=name, message=unknown_name(first, known, what="setting")))
            continue
        merge(data, said)
        origins.update((steps, f"environment {name}") for steps, _ in leaves(said))
    return data, origins, problems


def flag_data(flags: Mapping[str, object]) -> tuple[dict[str, object], dict[Steps, str]]:
    """Return what flags say. flags: value by dotted path, e.g. `auth.insecure_bind`."""
    data: dict[str, object] = {}
    origins: dict[Steps, str] = {}
    for dotted, value in flags.items():
        steps = tuple(dotted.split("."))
        said: object = value
        for step in reversed(steps):
            said = {step: said}
        assert isinstance(said, dict)  # noqa: S101 # a dotted path has at least one step
        merge(data, said)
        flag = _FLAGS.get(dotted, f"--{steps[-1].replace('_', '-')}")
        origins.update((leaf, f"flag {flag}") for leaf, _ in leaves(said))
    return data, origins


_FLAGS = {"endpoints": "--endpoint", "log.level": "--log-level", "log.format": "--log-format"}


def merge(under: dict[str, object], over: Mapping[str, object]) -> None:
    """Put `over` on top of `under`: mappings join, anything else replaces."""
    for key, value in over.items():
        below = under.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            merge(below, value)
        elif isinstance(value, Mapping):
            fresh: dict[str, object] = {}
            merge(fresh, value)
            under[key] = fresh
        else:
            under[key] = value


def leaves(data: object, steps: Steps = ()) -> list[tuple[Steps, object]]:
    """Return every value that is no mapping or list, and every empty one, with its place."""
    items: list[tuple[str | int, object]] = []
    if isinstance(data, Mapping):
        items = list(data.items())
    elif isinstance(data, list | tuple):
        items = list(enumerate(data))
    if not items:
        return [(steps, data)]
    return [leaf for step, item in items for leaf in leaves(item, (*steps, step))]


def _read_one(name: str, text: str) -> dict[str, object]:
    source = EnvSettingsSource(_EnvironmentSettings)
    source.env_vars = {name.lower(): text}
    said: dict[str, object] = source()
    # Values below a mapping of free names (a plugin's section) come as texts: pydantic-settings
    # knows no type there. A list or mapping in JSON is meant as such.
    for steps, value in leaves(said):
        if isinstance(value, str) and value[:1] in ("[", "{") and steps[:1] == ("plugins",):
            _put(said, steps, json.loads(value))
    return said


def _put(data: dict[str, object], steps: Steps, value: object) -> None:
    for step in steps[:-1]:
        inner = data[str(step)]
        assert isinstance(inner, dict), path_text(steps)  # noqa: S101 # came from `leaves`
        data = inner
    data[str(steps[-1])] = value


def _is_of_another_part(name: str) -> bool:
    return name in _OTHER_NAMES or name.startswith(_OTHERS)
