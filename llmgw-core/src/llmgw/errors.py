"""The error tree, sorted by who can act.

Each branch becomes an exit code (`cli/main.py`), an HTTP reply (`router/replies.py`,
`admin/app.py`) or a replica's reason (`control/decide/lifecycle.py`), in that one file
only. A message names the thing, the reason and the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class LlmgwError(Exception):
    """Root of everything that llmgw raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong in something a person wrote."""

    path: str  #: where, e.g. `models[1].profiles[0].engine`; "" for the whole file
    message: str  #: what is wrong, the value included (never a secret), and what would be right

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(LlmgwError):
    """The operator edits something. Carries every problem found, not the first only."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{source}: {count} problem{'' if count == 1 else 's'}"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class PluginError(LlmgwError):
    """The author of a plugin fixes something; `distribution` names the package."""

    def __init__(self, message: str, *, distribution: str) -> None:
        super().__init__(message)
        self.distribution = distribution


class PluginConflictError(PluginError):
    """Two packages supply the same name; the message names both."""


class TransientError(LlmgwError):
    """Time may fix it. Whoever owns the loop retries, not before `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NodeUnreachable(TransientError):
    """No live session to the node, or it ended before the command was taken."""


class NotLeader(TransientError):
    """This server may not write; `leader` is who may, None: nobody, as far as is known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(
            f"this server does not lead; {leader} does: send the change there"
            if leader
            else "no server leads at the moment; try again in a few seconds",
            retry_after_s=2.0,
        )
        self.leader = leader


class StoreUnavailable(TransientError):
    """The store did not answer within its deadline. Serving goes on; changes are refused."""


class PermanentError(LlmgwError):
    """Retrying the same thing cannot help."""


class NotAvailable(PermanentError):
    """An ability that this installation, node or engine does not have."""


class RequestError(LlmgwError):
    """The client asked for something that cannot be answered as asked.

    status: HTTP status. code: stable, machine-readable, snake_case. kind: OpenAI's
    `error.type`. param: the field at fault, None where no single one is.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
