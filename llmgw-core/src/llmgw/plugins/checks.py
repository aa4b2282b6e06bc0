"""Whether what a hook handed over is what it should be. Pure: looks at objects, calls none.

Signatures are the business of type checkers and of the contract kits in `llmgw.testing`;
here only that is found which would otherwise fail far from its cause.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

from llmgw.config.section import Section


def objects_in(result: object) -> tuple[object, ...]:
    """Return the objects that a hook's answer holds. Raises TypeError saying what it is instead."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("is async; hooks are plain functions that hand over objects")
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise TypeError(f"must return a list of objects, returned {_shown(result)}")
    return tuple(result)


def sections_in(result: object) -> dict[str, type[Section]]:
    """Return the settings sections that a hook's answer holds. Raises TypeError likewise."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("is async; hooks are plain functions that hand over objects")
    if not isinstance(result, Mapping):
        raise TypeError(f"must return a mapping of name to Section, returned {_shown(result)}")
    for name, section in result.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(f"section names must be identifiers, got {name!r}")
        if not isinstance(section, type) or not issubclass(section, Section):
            raise TypeError(
                f"section {name!r} must be a subclass of Section, got {_shown(section)}"
            )
    return dict(result)


def name_of(thing: object, protocol: type, key: str) -> str:
    """Return what `thing` is called, after checking that it has all that `protocol` asks for.

    key: the attribute that names it, e.g. `name` or `scheme`. Raises TypeError naming what
    is missing.
    """
    if isinstance(thing, type):
        raise TypeError(f"must hand over objects, got the class {thing.__name__} itself")
    missing = [
        member
        for member, is_method in _members(protocol)
        if not hasattr(thing, member) or (is_method and not callable(getattr(thing, member)))
    ]
    if missing:
        raise TypeError(f"{_shown(thing)} is no {protocol.__name__}: lacks {', '.join(missing)}")
    name = getattr(thing, key)
    if not isinstance(name, str) or not name:
        raise TypeError(f"{_shown(thing)}.{key} must be a text, is {name!r}")
    return name


def _members(protocol: type) -> list[tuple[str, bool]]:
    # `typing.get_protocol_members` is newer than our oldest Python; our seams inherit nothing.
    names = [*vars(protocol), *vars(protocol).get("__annotations__", {})]
    return [
        (name, inspect.isfunction(vars(protocol).get(name)))
        for name in names
        if not name.startswith("_")
    ]


def _shown(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
