"""Who is calling: the operator's token from its file, or one from the store."""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass

import anyio

from llmgw.clock import Clock
from llmgw.domain.secret import Secret
from llmgw.errors import RequestError, StoreUnavailable
from llmgw.router.keys.attempts import Attempts
from llmgw.store import Store
from llmgw.store.secrets import hash_secret, matches, split_secret
from llmgw.store.tokens import TOKEN_PREFIX, AdminToken, Role

# How soon a token that another server made or ended is known here.
_REFRESH_S = 10.0
# What a caller whose token is known waits for a store that is slow, which is when people look.
_PATIENCE_S = 1.0
_LONGEST_TOKEN = 512
_FAILURES_PER_MINUTE = 20
# One wrong script on the server itself must not lock its operator out.
_LOOPBACK = frozenset({"127.0.0.1", "::1", ""})
FILE_TOKEN_NAME = "admin.token"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody whose token is in force."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        return self.role.rank >= role.rank


class Authenticator:
    """Tells callers by their tokens. Answers from memory; looks at the store every ten seconds."""

    def __init__(self, file_token: Secret, store: Store | None, clock: Clock) -> None:
        self._file_hash = hash_secret(file_token.reveal())
        self._store = store
        self._clock = clock
        self._stored: dict[str, AdminToken] = {}
        self._read_at: float | None = None
        self._reading = anyio.Lock()
        self._attempts = Attempts(_FAILURES_PER_MINUTE)

    async def caller(self, header: str | None, *, address: str) -> Caller:
        """Return who sends this Authorization header from this address.

        Raises RequestError 401 `unauthorized` for none, an odd or an unknown one (C060), 429
        after too many of those; the message never holds what was sent.
        """
        now = self._clock.monotonic()
        if address not in _LOOPBACK and (wait_s := self._attempts.locked_s(address, now)):
            raise RequestError(
                "too many wrong tokens from this address",
                status=429,
                code="too_many_failures",
                kind="rate_limit_error",
                retry_after_s=wait_s,
            )
        scheme, _, rest = (header or "").strip().partition(" ")
        token = rest.strip()
        if scheme.lower() != "bearer" or not token:
            raise _refused(
                "no admin token was sent; the token is in <state_dir>/admin.token on the server: "
                "send it as `Authorization: Bearer …`, or use `llmgw ctl --token-file FILE`"
            )
        if found := await self.find(token):
            return found
        self._attempts.failed(address, now)
        raise _refused("the admin token is not valid; it may be mistyped, expired or revoked")

    async def find(self, token: str) -> Caller | None:
        """Return whose token this is; None if it is nobody's, however odd it is."""
        if len(token) > _LONGEST_TOKEN:
            return None
        # A wrong token is compared with both kinds, so that its time does not show which it resembles.
        # The file's needs no store: it must open while that is slow or away.
        if hmac.compare_digest(hash_secret(token), self._file_hash):
            return Caller(name=FILE_TOKEN_NAME, role=Role.ADMIN)
        return await self._stored_caller(token)

    def forget(self) -> None:
        """Read the store again at the next call: a token was made or ended here."""
        self._read_at = None

    async def _stored_caller(self, token: str) -> Caller | None:
        ident, secret = split_secret(TOKEN_PREFIX, token) or ("", "")
        with anyio.move_on_after(_PATIENCE_S if ident in self._stored else math.inf):
            await self._refresh()
        record = self._stored.get(ident)
        if not matches(secret, record.secret_hash if record else None) or record is None:
            return None
        if not record.usable(self._clock.wall()):
            return None
        return Caller(name=record.name, role=record.role)

    async def _refresh(self) -> None:
        store = self._store
        if store is None:
            return

        def read() -> None:
            # Here and not after it: what a caller did not wait for is known all the same.
            self._stored = {record.id: record for record in store.tokens.list()}

        async with self._reading:  # who comes meanwhile must not be judged by what was known before
            now = self._clock.monotonic()
            if self._read_at is not None and now - self._read_at < _REFRESH_S:
                return
            self._read_at = now
            try:
                await store.run(read)
            except StoreUnavailable:
                pass  # those known last stay good, so that operators can look at what is wrong


def _refused(message: str) -> RequestError:
    return RequestError(message, status=401, code="unauthorized", kind="authentication_error")
