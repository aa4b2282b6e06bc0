"""Reads the options of a routing profile into a balancer's own type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from llmgw.config.section import Section
from llmgw.errors import ConfigError, Problem


class NoOptions(Section):
    """For balancers that have nothing to set."""


Options = TypeVar("Options", bound=Section)


def read_options(balancer: str, kind: type[Options], given: Mapping[str, object]) -> Options:
    """Return the checked options; raises ConfigError with a path `options.…` per bad one."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        known = ", ".join(kind.model_fields) or "none"
        raise ConfigError(
            f"balancer {balancer}",
            [
                Problem(
                    path=".".join(["options", *map(str, item["loc"])]),
                    message=f"unknown option; {balancer} has: {known}"
                    if item["type"] == "extra_forbidden"
                    else f"{item['msg'].removeprefix('Value error, ')}, got {item['input']!r}",
                )
                for item in error.errors(include_url=False, include_context=False)
            ],
        ) from None
