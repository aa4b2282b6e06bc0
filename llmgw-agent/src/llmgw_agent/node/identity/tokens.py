"""Where a join token comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmgw.contracts.join import JoinToken
from llmgw.errors import TransientError

_HOW = "make one with `llmgw ctl join-token create` and start the agent with --join TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """What `--join` says, or the token that a server of the same user keeps for its own machine."""

    given: str | None = None  #: a token, or `@FILE`
    local: Path | None = None  #: where a server on this machine would keep its token

    def read(self) -> JoinToken:
        """Return the token as it is now: a file is read each time, since servers make new ones.

        Raises TransientError if there is none (yet) and ValueError if it is no token; neither
        message holds the text.
        """
        if (token := self.read_given()) is not None:
            return token
        if self.local is None or not self.local.exists():
            raise TransientError(f"this node has no certificate and no join token: {_HOW}")
        return self._from(self.local, "the local server's token")

    def read_given(self) -> JoinToken | None:
        """As `read`, for what `--join` says alone; None if it was not given."""
        if self.given is None:
            return None
        if self.given.startswith("@"):
            return self._from(Path(self.given[1:]).expanduser(), "the file that --join names")
        return JoinToken.parse(self.given)

    def _from(self, path: Path, what: str) -> JoinToken:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise TransientError(f"{path}, {what}, cannot be read: {reason}") from None
        try:
            return JoinToken.parse(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
