"""The join token, as an operator hands it to a node.

It is never sent: `joinproof` has what both ends make of its secret. Here is nothing that needs more than
the standard library, for an agent reads tokens and is to stay small.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmgw.domain.secret import Secret

SERVER_NAME = "llmgw-server"
"""DNS name in every server's certificate: agents check this one, whatever address they dial."""

_TOKEN = re.compile(r"llmgw1\.([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]{32,128})\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """`llmgw1.<id>.<secret>.<pin>`, as an operator hands it to a node."""

    id: str
    secret: Secret
    pin: str  #: `key_pin` of the cluster's certificate authority

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read a token. Raises ValueError that says what a token looks like, never the text."""
        if not (match := _TOKEN.fullmatch(text.strip())):
            raise ValueError(
                "not a join token; one looks like llmgw1.<id>.<secret>.<pin> and is made by "
                "`llmgw ctl join-token create`"
            )
        return cls(id=match[1], secret=Secret(match[2]), pin=match[3])

    def reveal(self) -> str:
        """Return the whole token, secret included."""
        return f"llmgw1.{self.id}.{self.secret.reveal()}.{self.pin}"
