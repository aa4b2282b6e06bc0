"""What one key may do, and its counters. One object per key for as long as the key exists.

Rates and concurrent requests hold for all routers together: each has a share (`domain.shares`).
Token budgets are summed by the store over all of them.
"""

from __future__ import annotations

import msgspec

from llmgw.clock import Clock
from llmgw.domain.keys import ApiKey, KeyLimits, KeySpend, Scope
from llmgw.domain.shares import KeyWant, RouterShares
from llmgw.domain.units import counted
from llmgw.errors import RequestError
from llmgw.router.keys.bucket import Bucket, resized
from llmgw.router.keys.budget import Budget
from llmgw.router.keys.meter import Meter
from llmgw.router.table import ModelRoute


class Charge(msgspec.Struct, eq=False):
    """One request under a key, from `KeyGrant.begin` until `end`. A struct, for price."""

    _grant: KeyGrant | None
    _estimate: int

    def end(self, tokens: int | None) -> None:
        """Give the place back and settle the estimate. Further calls do nothing.

        tokens: prompt and completion as the engine counted them; None: it did not say, the
        estimate stands; 0: the request was never computed.
        """
        grant, self._grant = self._grant, None
        if grant is not None:
            grant.ended(self._estimate, self._estimate if tokens is None else tokens)


class KeyGrant:
    """A key that has been accepted, or everybody where no key is asked for."""

    __slots__ = (
        "_budget",
        "_clock",
        "_is_shared",
        "_models",
        "_part",
        "_refused",
        "_requests",
        "_requests_meter",
        "_shares",
        "_tokens",
        "_tokens_meter",
        "_used",
        "has_rates",
        "in_flight",
        "is_revoked",
        "is_used",
        "key",
        "key_id",
    )

    def __init__(self, key: ApiKey, clock: Clock, used: list[KeyGrant] | None = None) -> None:
        """used: where it enters itself when it is used and has limits that are shared."""
        self.in_flight = 0
        self.is_used = False  #: it is in `used`
        self.is_revoked = False  #: it has left the table; set by that
        self._clock = clock
        self._budget = Budget()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._requests_meter = Meter()
        self._tokens_meter = Meter()
        self._refused = 0  #: for their number in flight, since the last look
        self._used = used
        self._shares = RouterShares()
        self.renew(key)

    def renew(self, key: ApiKey) -> None:
        """Take a changed key; what has been used stays used."""
        now = self._clock.monotonic()
        self.key = key
        self.key_id = key.id  #: "" where no key is asked for
        self._is_shared = _is_shared(key.limits)
        self.has_rates = _has_rates(key.limits)  #: beside the number in flight
        self._models = None if key.models is None else frozenset(key.models)
        self._part = part = self._shares.of_key(key.id, key.limits)
        self._requests = resized(self._requests, part.requests_per_minute, now)
        self._tokens = resized(self._tokens, part.tokens_per_minute, now)

    def take_shares(self, shares: RouterShares) -> None:
        """Keep to another share of the key's limits."""
        self._shares = shares
        before, self._part = self._part, shares.of_key(self.key.id, self.key.limits)
        if before != self._part:
            now = self._clock.monotonic()
            if self._requests is not None and self._part.requests_per_minute is not None:
                self._requests.share(self._part.requests_per_minute, now)
            if self._tokens is not None and self._part.tokens_per_minute is not None:
                self._tokens.share(self._part.tokens_per_minute, now)

    def want(self, interval_s: float) -> KeyWant:
        """Return what this router could use of the key's limits; all 0 when the key is idle.

        interval_s: since the last call.
        """
        limits = self.key.limits
        concurrent = requests = tokens = 0
        if limits.requests_per_minute is not None:
            requests = _with_room(self._requests_meter.per_minute(interval_s))
        if limits.tokens_per_minute is not None:
            tokens = _with_room(self._tokens_meter.per_minute(interval_s))
        if limits.concurrent_requests is not None:
            concurrent = _with_room(self.in_flight + self._refused)
        self._refused = 0
        return KeyWant(
            requests_per_minute=requests, tokens_per_minute=tokens, concurrent_requests=concurrent
        )

    def learn(self, spend: KeySpend) -> None:
        """Take the store's sum of what the key has spent."""
        self._budget.learn(spend)

    @property
    def is_valid(self) -> bool:
        """Whether the key still opens anything: neither revoked nor expired since it was shown."""
        expires_at = self.key.expires_at
        return not self.is_revoked and (expires_at is None or self._clock.wall() < expires_at)

    def has_scope(self, scope: Scope) -> bool:
        return scope in self.key.scopes

    def allows(self, route: ModelRoute) -> bool:
        """Say whether the key may use this model, by whichever of its names the key lists it.

        Takes the route and not a name: what is checked is then the very thing that is used (C063).
        """
        return self._models is None or not self._models.isdisjoint(route.names)

    def begin(self, tokens: int) -> Charge | RequestError:
        """Count a request of about this many prompt tokens, or return why it must wait.

        Nothing is counted when it is refused.
        """
        part = self._part
        if self._is_shared:
            if not self.is_used and self._used is not None:
                self.is_used = True
                self._used.append(self)
            self._requests_meter.count += 1
            self._tokens_meter.count += tokens
        if part.concurrent_requests is not None and self.in_flight >= part.concurrent_requests:
            self._refused += 1
            return _limited(
                "concurrent_requests",
                f"the key has {counted(self.in_flight, 'request')} in flight, as many as it may",
                1.0,
            )
        if self.has_rates and (refusal := self._pace(tokens)) is not None:
            return refusal
        self.in_flight += 1
        return Charge(self, tokens)

    def _pace(self, tokens: int) -> RequestError | None:
        """Take a request of this many tokens from rates and budgets, or return why it must wait."""
        now = self._clock.monotonic()
        if self._requests is not None and (wait_s := self._requests.wait_s(1, now)):
            return _limited(
                "requests_per_minute",
                f"the key may send {counted(self.key.limits.requests_per_minute or 0, 'request')} a minute",
                wait_s,
            )
        if self._tokens is not None and (wait_s := self._tokens.wait_s(tokens, now)):
            return _limited(
                "tokens_per_minute",
                f"the key may use {self.key.limits.tokens_per_minute} tokens a minute",
                wait_s,
            )
        if (over_s := self._budget.exceeded_until(self._part, self._clock.wall())) is not None:
            return RequestError(
                "the key's token budget is used up",
                status=429,
                code="insufficient_quota",
                kind="insufficient_quota",
                retry_after_s=max(1.0, over_s),
            )
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(tokens, now)
        return None

    def ended(self, estimate: int, tokens: int) -> None:
        """For `Charge` only."""
        self.in_flight -= 1
        if self._tokens is not None and tokens > estimate:
            self._tokens_meter.count += tokens - estimate
        if self._tokens is not None:
            self._tokens.take(tokens - estimate, self._clock.monotonic())
        self._budget.spend(tokens, self._clock.wall())

    def rate_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the `x-ratelimit-*` headers of an answer; () where the key has no rates."""
        if self._requests is None and self._tokens is None:
            return ()
        now = self._clock.monotonic()
        headers: list[tuple[bytes, bytes]] = []
        limits = self.key.limits
        for what, bucket, limit in (
            (b"requests", self._requests, limits.requests_per_minute),
            (b"tokens", self._tokens, limits.tokens_per_minute),
        ):
            if bucket is not None and limit is not None:
                # What is left here stands for what is left everywhere.
                left = max(0, int(bucket.level(now) * limit / bucket.per_minute))
                full_s = bucket.wait_s(bucket.per_minute, now)
                headers += (
                    (b"x-ratelimit-limit-" + what, b"%d" % limit),
                    (b"x-ratelimit-remaining-" + what, b"%d" % left),
                    (b"x-ratelimit-reset-" + what, b"%.3fs" % full_s),
                )
        return tuple(headers)


def _is_shared(limits: KeyLimits) -> bool:
    return (
        limits.requests_per_minute is not None
        or limits.tokens_per_minute is not None
        or limits.concurrent_requests is not None
    )


def _has_rates(limits: KeyLimits) -> bool:
    """Say whether anything but the number in flight is limited."""
    return (
        limits.requests_per_minute is not None
        or limits.tokens_per_minute is not None
        or limits.tokens_per_day is not None
        or limits.tokens_per_month is not None
    )


def _with_room(count: int) -> int:
    """Return a quarter more, so that a share grows before it is used up."""
    return count + -(-count // 4)


def _limited(code: str, message: str, wait_s: float) -> RequestError:
    return RequestError(
        message,
        status=429,
        code=f"{code}_exceeded",
        kind="rate_limit_error",
        retry_after_s=float(max(1, -int(-wait_s // 1))),
    )
