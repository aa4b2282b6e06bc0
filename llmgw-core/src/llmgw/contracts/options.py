"""Typed engine options, checked before anything is launched.

An engine refuses a misspelt option only after its imports, up to 16 s later; and some options
must not be settable at all, since they open a door or run code.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from llmgw.errors import Problem

_SHOWN = 80


class EngineOptions(BaseModel):
    """The options of one engine by its own names; unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a path below the folder of the weights, without '..'")
    return value


InWeights = Annotated[str, AfterValidator(_inside)]
"""A file beside the weights. Any other path could name a file that the node did not offer."""

Options = TypeVar("Options", bound=EngineOptions)


def option_problems(
    kind: type[EngineOptions], given: Mapping[str, object], refused: Mapping[str, str]
) -> tuple[Problem, ...]:
    """Return everything wrong with the options of a profile, () if nothing.

    refused: name with underscores -> why it may not be given. Paths start with `options.`.
    """
    try:
        kind.model_validate(dict(given))
    except ValidationError as error:
        return tuple(
            _problem(
                kind,
                tuple(map(str, item["loc"])),
                item["type"],
                item["msg"],
                item["input"],
                refused,
            )
            for item in error.errors(include_url=False, include_context=False)
        )
    return ()


def _problem(
    kind: type[EngineOptions],
    where: tuple[str, ...],
    fault: str,
    message: str,
    value: object,
    refused: Mapping[str, str],
) -> Problem:
    path = ".".join(("options", *where))
    if fault == "extra_forbidden" and len(where) == 1:
        return Problem(path=path, message=_unknown(kind, where[0], refused))
    said = message.removeprefix("Value error, ")
    said = said[:1].lower() + said[1:]
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 1] + "…"
    return Problem(path=path, message=said if not where else f"{said}, got {shown}")


def _unknown(kind: type[EngineOptions], name: str, refused: Mapping[str, str]) -> str:
    plain = name.lstrip("-").replace("-", "_").lower()
    if reason := refused.get(plain):
        return f"{name!r} is refused: {reason}"
    near = difflib.get_close_matches(plain, kind.model_fields, n=1)
    return f"unknown option {name!r}" + (f", did you mean {near[0]!r}?" if near else "")


_LOADS_CODE = ("PATH", "PLUGIN", "PRELOAD", "INJECTION")


def env_problems(
    env: Mapping[str, str], allowed: tuple[str, ...], refused: Mapping[str, str] | None = None
) -> tuple[Problem, ...]:
    """Return what is wrong with the environment that a profile adds.

    allowed: prefixes of names that tune an engine. By any other, such as LD_PRELOAD, PYTHONPATH
    or PATH, whoever writes a profile would choose what code runs; so would they by an allowed
    prefix's NCCL_NET_PLUGIN or GGML_BACKEND_PATH. refused: name -> why it may not be given.
    """
    rule = f"must begin with {', '.join(allowed)} and must not name a path or plugin to load"
    problems: list[Problem] = []
    for name in env:
        if reason := (refused or {}).get(name):
            problems.append(Problem(path=f"env.{name}", message=f"is refused: {reason}"))
        elif not name.startswith(allowed) or any(word in name for word in _LOADS_CODE):
            problems.append(Problem(path=f"env.{name}", message=rule))
    return tuple(problems)
