"""What a validation found, in words for the person who wrote the value."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from llmgw.config.documents import Steps, path_text
from llmgw.errors import Problem

#: Free mappings, whose values may be keys whatever their names are.
_HIDDEN_BELOW = frozenset({"headers", "env"})
_SECRET_NAME = re.compile(
    r"(secret|token|password|api[_-]?key|credential|authorization)$", re.IGNORECASE
)
#: How many characters of a wrong value are shown.
_SHOWN = 80


def problems_of(
    error: ValidationError, model: type[BaseModel], where: Callable[[Steps], str]
) -> list[Problem]:
    """Return one problem per mistake that pydantic found, in file order of the model.

    where: says after each message where the value came from, e.g. ` (line 3)`; may be "".
    """
    problems = []
    for details in error.errors(include_url=False):
        steps = tuple(step for step in details["loc"] if step != "[key]")
        if is_hidden(steps) or _type_at(model, steps) is SecretStr:
            message = f"is not right, and not shown ({details['type'].replace('_', ' ')})"
        else:
            message = _message(details, model, steps)
        problems.append(Problem(path=path_text(steps), message=message + where(steps)))
    return problems


def unknown_name(name: str, known: Iterable[str], *, what: str) -> str:
    """Return `unknown key 'replica'; did you mean 'replicas'?`, or the list where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    if near:
        return f"unknown {what} {name!r}; did you mean {near[0]!r}?"
    return f"unknown {what} {name!r}; known: {', '.join(names) or 'none'}"


def shown(value: object) -> str:
    """Return a short form of a wrong value for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_hidden(steps: Steps) -> bool:
    """Return whether what stands here may be a key, by its name or its place."""
    return any(step in _HIDDEN_BELOW for step in steps[:-1]) or any(
        isinstance(step, str) and _SECRET_NAME.search(step) for step in steps[-1:]
    )


def fields_at(model: type[BaseModel], steps: Steps) -> tuple[str, ...] | None:
    """Return the keys that may stand at a place of the settings; None where any may."""
    kind = _type_at(model, steps)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return tuple(kind.model_fields)
    return None


def _message(details: ErrorDetails, model: type[BaseModel], steps: Steps) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    got = f", got {shown(value)}"
    if kind == "missing":
        return "is missing"
    if kind == "json_invalid":
        return str(details["msg"])  # its value is the whole text
    if kind == "extra_forbidden":
        return unknown_name(str(steps[-1]), fields_at(model, steps[:-1]) or (), what="key")
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"must be {words} {context[name]:g}{got}"
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if kind == "literal_error":
        return f"must be {context['expected']}{got}"
    if kind == "string_type" and isinstance(value, int | float):
        return f"must be text{got}; put it in quotes as you mean it"
    if kind in ("too_short", "too_long"):
        bound, number = (
            ("at least", context["min_length"])
            if kind == "too_short"
            else ("at most", context["max_length"])
        )
        return f"must have {bound} {number}, has {context['actual_length']}"
    return _PLAIN.get(kind, details["msg"][0].lower() + details["msg"][1:]) + got


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_WHOLE, _NUMBER, _BOOL = "must be a whole number", "must be a number", "must be true or false"
_MAPPING, _LIST = "must be a mapping of `key: value` lines", "must be a list"
_PLAIN = {
    "string_type": "must be text",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "mapping_type": _MAPPING,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "path_type": "must be a path",
}


def _type_at(model: type[BaseModel], steps: Steps) -> Any:
    kind: Any = model
    for step in steps:
        kind = _plain(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(step))
            kind = field.annotation if field else None
        elif arguments := get_args(kind):
            # `tuple[X, ...]` has its items first, `Mapping[str, X]` its values last.
            kind = arguments[0] if isinstance(step, int) else arguments[-1]
        else:
            return None
    return _plain(kind)


def _plain(kind: Any) -> Any:
    """Strip `Annotated` and `| None`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            inner = [item for item in get_args(kind) if item is not type(None)]
            if len(inner) != 1:
                return kind
            kind = inner[0]
        else:
            return kind
