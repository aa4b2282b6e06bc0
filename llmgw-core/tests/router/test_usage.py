"""No token is lost or counted twice on the way to the store."""

from __future__ import annotations

from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.usage import UsageRecord
from llmgw.router.usage import UsageLedger


def record(number: int = 0, *, at: float = 0.0, tokens: int = 10) -> UsageRecord:
    return UsageRecord(
        at=at,
        key=f"k{number % 3}",
        model=ModelName("m"),
        endpoint=EndpointId("e"),
        status=200,
        prompt_tokens=tokens,
        cached_tokens=1,
        completion_tokens=2,
        first_byte_s=0.5,
        duration_s=1.0,
    )


def test_a_batch_is_handed_out_until_it_is_settled() -> None:
    ledger = UsageLedger()
    assert ledger.batch() is None
    ledger.add(record())
    first = ledger.batch()
    assert first is not None
    ledger.add(record())
    assert ledger.batch() is first
    ledger.settle("another")
    assert ledger.batch() is first
    ledger.settle(first.id)
    second = ledger.batch()
    assert second is not None
    assert second.id != first.id
    assert len(second.records) == 1
    ledger.settle(second.id)
    assert ledger.batch() is None
    assert len(ledger) == 0


def test_an_outage_costs_detail_and_neither_tokens_nor_memory() -> None:
    ledger = UsageLedger(detailed=100)
    for number in range(10_000):
        ledger.add(record(number, at=3600.0 * (number // 5000)))
    assert len(ledger) <= 100 + 3 * 2
    requests = tokens = 0
    seconds = 0.0
    while (batch := ledger.batch()) is not None:
        requests += sum(item.requests for item in batch.records)
        tokens += sum(item.prompt_tokens for item in batch.records)
        seconds += sum(item.duration_s for item in batch.records)
        ledger.settle(batch.id)
    assert (requests, tokens, seconds) == (10_000, 100_000, 10_000.0)


def test_sums_are_kept_apart_by_hour_and_key() -> None:
    ledger = UsageLedger(detailed=0)
    for number in range(6):
        ledger.add(record(number, at=3600.0 * (number // 3)))
    batch = ledger.batch()
    assert batch is not None
    assert {(item.key, item.at) for item in batch.records} == {
        (key, at) for key in ("k0", "k1", "k2") for at in (0.0, 3600.0)
    }


def test_batches_are_bounded() -> None:
    ledger = UsageLedger()
    for number in range(5_000):
        ledger.add(record(number))
    batch = ledger.batch()
    assert batch is not None
    assert len(batch.records) == 2_000
