"""Every setting in force, with where it came from and no secret in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, SecretStr

from llmgw.config.documents import Steps, path_text
from llmgw.config.loading import Loaded
from llmgw.config.problems import is_hidden

MASK = "***"


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting: a plain value or an empty collection."""

    path: str
    value: object  #: as JSON has it
    origin: str  #: `default`, `file PATH:LINE`, `environment NAME` or `flag --NAME`


def shown_settings(loaded: Loaded) -> tuple[Shown, ...]:
    """Return all settings in the order of the reference page."""
    rows = []
    for steps, value in _leaves(loaded.settings, ()):
        path = path_text(steps)
        origin = loaded.origins.get(path)
        if origin is None and steps[:1] == ("models",) and len(steps) > 1:
            model = loaded.settings.models[int(steps[1])]
            owner = loaded.owners[model.name]
            origin = f"file {owner}" if _is_written(model, steps[2:]) else "default"
        rows.append(Shown(path, value, origin or "default"))
    return tuple(rows)


def _leaves(value: object, steps: Steps) -> list[tuple[Steps, object]]:
    if isinstance(value, SecretStr):
        return [(steps, MASK)]
    items: list[tuple[str | int, object]] = []
    if isinstance(value, BaseModel):
        items = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif isinstance(value, Mapping):
        items = [
            (key, MASK if is_hidden((*steps, str(key))) else item) for key, item in value.items()
        ]
    elif isinstance(value, tuple | list):
        items = list(enumerate(value))
    if items:
        return [leaf for step, item in items for leaf in _leaves(item, (*steps, step))]
    if isinstance(value, Mapping):
        return [(steps, {})]
    if isinstance(value, tuple | list):
        return [(steps, [])]
    plain = value if isinstance(value, str | int | float | bool | None) else str(value)
    return [(steps, plain)]


def _is_written(value: object, steps: Steps) -> bool:
    """Whether a file said it, or it is a default that pydantic filled in."""
    for step in steps:
        if isinstance(value, BaseModel):
            if str(step) not in value.model_fields_set:
                return False
            value = getattr(value, str(step))
        elif isinstance(value, tuple | list):
            value = value[int(step)]
        elif isinstance(value, Mapping):
            value = value[step]
    return True
