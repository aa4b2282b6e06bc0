"""What one key may do, and its counters. One object per key for as long as the key exists.

Rates and concurrent requests are counted by each router on its own: with N routers or workers
a key may use up to N times as much. Token budgets are summed by the store over all of them.
"""

from __future__ import annotations

from llmgw.clock import Clock
from llmgw.domain.keys import ApiKey, KeySpend, Scope
from llmgw.errors import RequestError
from llmgw.router.keys.bucket import Bucket, resized
from llmgw.router.keys.budget import Budget
from llmgw.router.table import ModelRoute


class Charge:
    """One request under a key, from `KeyGrant.begin` until `end`."""

    __slots__ = ("_estimate", "_grant")

    def __init__(self, grant: KeyGrant, estimate: int) -> None:
        self._grant: KeyGrant | None = grant
        self._estimate = estimate

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

    __slots__ = ("_budget", "_clock", "_models", "_requests", "_tokens", "in_flight", "key")

    def __init__(self, key: ApiKey, clock: Clock) -> None:
        self.in_flight = 0
        self._clock = clock
        self._budget = Budget()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.renew(key)

    def renew(self, key: ApiKey) -> None:
        """Take a changed key; what has been used stays used."""
        now = self._clock.monotonic()
        self.key = key
        self._models = None if key.models is None else frozenset(key.models)
        self._requests = resized(self._requests, key.limits.requests_per_minute, now)
        self._tokens = resized(self._tokens, key.limits.tokens_per_minute, now)

    def learn(self, spend: KeySpend) -> None:
        """Take the store's sum of what the key has spent."""
        self._budget.learn(spend)

    @property
    def key_id(self) -> str:
        """The key's id; "" where no key is asked for."""
        return self.key.id

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
        limits = self.key.limits
        now = self._clock.monotonic()
        if limits.concurrent_requests is not None and self.in_flight >= limits.concurrent_requests:
            return _limited(
                "concurrent_requests",
                f"the key has {self.in_flight} requests in flight, as many as it may",
                1.0,
            )
        if self._requests is not None and (wait_s := self._requests.wait_s(1, now)):
            return _limited(
                "requests_per_minute",
                f"the key may send {self._requests.per_minute} requests a minute",
                wait_s,
            )
        if self._tokens is not None and (wait_s := self._tokens.wait_s(tokens, now)):
            return _limited(
                "tokens_per_minute",
                f"the key may use {self._tokens.per_minute} tokens a minute",
                wait_s,
            )
        if (over_s := self._budget.exceeded_until(limits, self._clock.wall())) is not None:
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
        self.in_flight += 1
        return Charge(self, tokens)

    def ended(self, estimate: int, tokens: int) -> None:
        """For `Charge` only."""
        self.in_flight -= 1
        if self._tokens is not None:
            self._tokens.take(tokens - estimate, self._clock.monotonic())
        self._budget.spend(tokens, self._clock.wall())

    def rate_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the `x-ratelimit-*` headers of an answer; () where the key has no rates."""
        if self._requests is None and self._tokens is None:
            return ()
        now = self._clock.monotonic()
        headers: list[tuple[bytes, bytes]] = []
        for what, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                left = max(0, int(bucket.level(now)))
                full_s = bucket.wait_s(bucket.per_minute, now)
                headers += (
                    (b"x-ratelimit-limit-" + what, b"%d" % bucket.per_minute),
                    (b"x-ratelimit-remaining-" + what, b"%d" % left),
                    (b"x-ratelimit-reset-" + what, b"%.3fs" % full_s),
                )
        return tuple(headers)


def _limited(code: str, message: str, wait_s: float) -> RequestError:
    return RequestError(
        message,
        status=429,
        code=f"{code}_exceeded",
        kind="rate_limit_error",
        retry_after_s=float(max(1, -int(-wait_s // 1))),
    )
