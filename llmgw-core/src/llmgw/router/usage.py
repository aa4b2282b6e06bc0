"""What requests have used, kept until the store or the feed has taken it. A store, bounded."""

from __future__ import annotations

import secrets
from collections import deque

from llmgw.domain.usage import UsageBatch, UsageRecord

_DETAILED = 10_000
_BATCH = 2_000


class UsageLedger:
    """Records in order of arrival.

    A consumer takes one batch at a time and settles it; until then the same batch is handed
    out again under the same id, so that a lost answer counts nothing twice. Above a limit,
    records are summed by hour, key, model, endpoint and status: an outage of the store costs
    detail, no tokens, and memory only for what differs.
    """

    def __init__(self, *, detailed: int = _DETAILED) -> None:
        self._detailed = detailed
        self._records: deque[UsageRecord] = deque()
        self._sums: dict[tuple[object, ...], UsageRecord] = {}
        self._batch: UsageBatch | None = None

    def __len__(self) -> int:
        """Records that no consumer has settled yet."""
        taken = len(self._batch.records) if self._batch else 0
        return len(self._records) + len(self._sums) + taken

    def add(self, record: UsageRecord) -> None:
        """Note one request that has ended."""
        self._records.append(record)
        if len(self._records) > self._detailed:
            self._fold(self._records.popleft())

    def batch(self) -> UsageBatch | None:
        """Return what is to be stored next, the same until it is settled; None if nothing is."""
        if self._batch is None and (self._records or self._sums):
            records = list(self._sums.values())
            self._sums = {}
            while self._records and len(records) < _BATCH:
                records.append(self._records.popleft())
            self._batch = UsageBatch(id=secrets.token_hex(16), records=tuple(records))
        return self._batch

    def settle(self, batch_id: str) -> None:
        """Forget a batch that has been stored. An unknown id is that of an earlier one."""
        if self._batch is not None and self._batch.id == batch_id:
            self._batch = None

    def _fold(self, record: UsageRecord) -> None:
        hour = int(record.at // 3600)
        place = (hour, record.key, record.model, record.endpoint, record.status)
        known = self._sums.get(place)
        self._sums[place] = record if known is None else _sum(known, record)


def _sum(one: UsageRecord, other: UsageRecord) -> UsageRecord:
    return UsageRecord(
        at=one.at,
        key=one.key,
        model=one.model,
        endpoint=one.endpoint,
        status=one.status,
        requests=one.requests + other.requests,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        first_byte_s=one.first_byte_s + other.first_byte_s,
        duration_s=one.duration_s + other.duration_s,
    )
