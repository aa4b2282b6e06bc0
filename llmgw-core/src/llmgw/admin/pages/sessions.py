"""Who is signed in, by browser. In memory: a restart asks for the token again."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from llmgw.admin.auth import Caller
from llmgw.domain.secret import Secret

COOKIE = "llmgw_session"
LIFETIME_S = 12 * 3600.0
#: Of somebody whom a provider has named: what it has taken back since is not seen here.
NAMED_LIFETIME_S = 3600.0
_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    who: Secret | Caller
    until: float  #: monotonic


class Sessions:
    """Tokens, or people whom a provider has named, by session id.

    The browser holds only the id, in a cookie that no script can read.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, _Session] = {}

    def open(self, who: Secret | Caller, now: float) -> str:
        """Begin a session with a token or a person that was found good; return its id."""
        self._by_id = {key: item for key, item in self._by_id.items() if item.until > now}
        while len(self._by_id) >= _MOST:
            del self._by_id[next(iter(self._by_id))]
        ident = secrets.token_urlsafe(32)
        lifetime_s = NAMED_LIFETIME_S if isinstance(who, Caller) else LIFETIME_S
        self._by_id[ident] = _Session(who=who, until=now + lifetime_s)
        return ident

    def who(self, ident: str, now: float) -> Secret | Caller | None:
        """Return whose session it is; a token must be checked again, since it may have ended."""
        found = self._by_id.get(ident)
        return found.who if found is not None and found.until > now else None

    def close(self, ident: str) -> None:
        """End a session. Safe to repeat."""
        self._by_id.pop(ident, None)
