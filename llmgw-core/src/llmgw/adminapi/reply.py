"""The root of every reply and request, and the shape of errors and pages."""

from __future__ import annotations

from pydantic import BaseModel, BeforeValidator, ConfigDict

PREFIX = "/admin/v1"


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Takes integers as JSON Schema has them: 5.0 is one. Bodies are read strictly, where it would
not be. Stands after the limits, or the document would lose them."""


class Reply(BaseModel):
    """What the server says. Readers ignore fields that are newer than they are."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class Request(BaseModel):
    """What a caller sends; an unknown field is an error, since it may be a mistyped one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ProblemReply(Reply):
    """One thing wrong in what was sent."""

    path: str
    message: str


class ErrorDetail(Reply):
    """As OpenAI's API says it, so that one client reads both."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None
    problems: tuple[ProblemReply, ...] = ()
    """Every problem found, where there can be several."""
    leader_url: str | None = None
    """With `not_leader`: the admin address of the server that leads, if it is known."""


class ErrorReply(Reply):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class Done(Reply):
    """Something was done that has nothing more to say."""

    done: bool = True
