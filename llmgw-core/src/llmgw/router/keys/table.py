"""All keys of this router, swapped whole by the feed.

Keys are known by the SHA-256 of their secret only. Secrets are random, so a slow hash would
protect nothing and cost every request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence

from llmgw.clock import Clock
from llmgw.domain.keys import KEY_PREFIX, ApiKey, KeySpend, Scope
from llmgw.domain.shares import KeyWant, RouterShares
from llmgw.errors import RequestError
from llmgw.router.keys.attempts import Attempts
from llmgw.router.keys.grant import KeyGrant

_LONGEST_KEY = 512
_FAILURES_PER_MINUTE = 60
_NOBODY = ApiKey(id="", secret_hash="0" * 64)  # the hash of nothing that anybody knows
_NOTHING = KeyWant()
_LOOPBACK = frozenset({"127.0.0.1", "::1", ""})


class KeyTable:
    """Says who asks.

    is_open: no key is asked for; what is sent as one is ignored.
    """

    def __init__(self, clock: Clock, *, is_open: bool) -> None:
        self.is_open = is_open
        self.on_change: Callable[[], None] = lambda: None
        """Called after each replacement: who waits under a key may have lost it."""
        self.generation = 0  #: counts replacements: an older answer of `authorise` may be wrong
        self._clock = clock
        self._grants: dict[str, KeyGrant] = {}
        self._used: list[KeyGrant] = []  #: those with shared limits, since they were last idle
        self._shares = RouterShares()
        self._wants_at = clock.monotonic()
        self._nobody = KeyGrant(_NOBODY, clock)
        self._attempts = Attempts(_FAILURES_PER_MINUTE)

    def replace(self, keys: Iterable[ApiKey], spend: Iterable[KeySpend] = ()) -> None:
        """Take the whole list of valid keys. One that is missing from it is revoked from now on."""
        grants: dict[str, KeyGrant] = {}
        for key in keys:
            grant = self._grants.get(key.id)
            # A new secret under an old id is a rotated key: it is the same customer.
            if grant is None:
                grant = KeyGrant(key, self._clock, self._used)
                grant.take_shares(self._shares)
            else:
                grant.renew(key)
            grants[key.id] = grant
        for id_, grant in self._grants.items():
            grant.is_revoked = id_ not in grants
        self._grants = grants
        self.generation += 1
        self.learn(spend)
        self.on_change()

    def learn(self, spend: Iterable[KeySpend]) -> None:
        """Take the store's sums of what keys have spent."""
        for item in spend:
            if (grant := self._grants.get(item.key)) is not None:
                grant.learn(item)

    def take_shares(self, shares: RouterShares) -> None:
        """Keep to these shares of the keys' limits."""
        before, self._shares = self._shares, shares
        if before.routers != shares.routers:
            changed = set(self._grants)
        else:
            changed = {*before.keys, *shares.keys} & self._grants.keys()
        for id_ in changed:
            self._grants[id_].take_shares(shares)

    def wants(self) -> dict[str, KeyWant]:
        """Return what this router could use of each key's limits; idle keys are left out.

        Figures are since the last call, so there is one caller, about once a second.
        """
        now = self._clock.monotonic()
        interval_s, self._wants_at = max(0.1, now - self._wants_at), now
        wants: dict[str, KeyWant] = {}
        for grant in tuple(self._used):
            want = grant.want(interval_s)
            if want == _NOTHING or grant.is_revoked:
                grant.is_used = False
                self._used.remove(grant)
            else:
                wants[grant.key_id] = want
        return wants

    def authorise(
        self, values: Sequence[bytes], *, address: str = "", scope: Scope = Scope.INFERENCE
    ) -> KeyGrant | RequestError:
        """Return the grant of the key in these header values, or why there is none.

        values: of every header that may carry a key, as sent: `Bearer llmgw_…`, or the key
        alone. Never raises, whatever bytes they are (C060).
        """
        if self.is_open:
            return self._nobody
        shown = {key for value in values if (key := _without_scheme(value))}
        if len(shown) != 1:
            # Two different keys would be a question of which part of us reads which.
            problem = "more than one API key was sent" if shown else "no API key was sent"
            return _refused(f"{problem}; send one as `Authorization: Bearer llmgw_…`")
        grant = self._grant_of(shown.pop())
        if grant is None:
            return self._wrong_key(address)
        if not grant.has_scope(scope):
            return RequestError(
                f"the API key has no scope {scope.value!r}",
                status=403,
                code="missing_scope",
                kind="permission_error",
            )
        return grant

    def _wrong_key(self, address: str) -> RequestError:
        """Refuse, and sooner or later with a pause.

        A right key is accepted from any address at any time: behind a proxy all clients may
        share one, and a secret of 32 random bytes is not guessed.
        """
        now = self._clock.monotonic()
        wait_s = self._attempts.locked_s(address, now)
        if not wait_s or address in _LOOPBACK:
            self._attempts.failed(address, now)
            return invalid_key()
        return RequestError(
            "too many wrong API keys from this address",
            status=429,
            code="too_many_failures",
            kind="rate_limit_error",
            retry_after_s=float(int(wait_s) + 1),
        )

    def grants(self) -> tuple[KeyGrant, ...]:
        """Return every key's counters, to be read and not changed."""
        return tuple(self._grants.values())

    def _grant_of(self, shown: bytes) -> KeyGrant | None:
        prefix, _, rest = shown.partition(b"_")
        id_, _, secret = rest.partition(b"_")
        grant = self._grants.get(id_.decode("ascii", "replace"))
        # The same work for an unknown id, so that the answer's time does not tell which ids exist.
        expected = (grant or self._nobody).key.secret_hash
        digest = hashlib.sha256(secret).hexdigest()
        is_right = hmac.compare_digest(digest, expected) and prefix == KEY_PREFIX.encode()
        return grant if grant is not None and is_right and grant.is_valid else None


def _without_scheme(value: bytes) -> bytes:
    """Return the key in a header value; b"" if it holds none."""
    if len(value) > _LONGEST_KEY:
        return b"?"  # something was sent, and it is no key
    scheme, separator, rest = value.strip(b" \t").partition(b" ")
    if scheme.lower() == b"bearer":  # schemes know no case (RFC 9110 11.1)
        return rest.strip(b" \t") if separator else b""
    return value.strip(b" \t")


def invalid_key() -> RequestError:
    """Return the refusal of a key that opens nothing, or nothing any more."""
    return _refused("the API key is not valid; it may be mistyped, expired or revoked")


def _refused(message: str) -> RequestError:
    return RequestError(message, status=401, code="invalid_api_key", kind="authentication_error")
