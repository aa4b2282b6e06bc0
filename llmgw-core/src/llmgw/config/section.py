"""The base of every settings section, core's and plugins'."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from llmgw.domain.units import Seconds

__all__ = ["Seconds", "Section"]


class Section(BaseModel):
    """Frozen settings; an unknown key is an error.

    Give each field a default and a docstring: `llmgw config schema` and the reference page are
    made from them. Use `pydantic.SecretStr` for secrets, so that they are masked everywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
