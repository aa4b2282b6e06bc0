"""Every field comes over the feed as it was."""

from __future__ import annotations

import pytest

from llmgw.adminapi.feed_messages import (
    FeedPulse,
    FeedSnapshot,
    FeedSpend,
    RouterReport,
    decode_line,
    decode_report,
    decode_shares,
    encode_line,
    encode_report,
    encode_shares,
)
from llmgw.domain.endpoints import (
    Endpoint,
    EndpointUsage,
    ModelState,
    ModelStatus,
    RouterUsage,
)
from llmgw.domain.ids import EndpointId, Epoch, ModelName, NodeId, ProfileName, ReplicaId
from llmgw.domain.keys import ApiKey, KeyLimits, KeySpend, Scope
from llmgw.domain.plans import Refusal
from llmgw.domain.secret import Secret
from llmgw.domain.shares import KeyWant, RouterShares, RouterWants
from llmgw.domain.usage import UsageBatch, UsageRecord

MODEL = ModelName("org/model:7b")

SNAPSHOT = FeedSnapshot(
    cluster="c",
    server="s1",
    epoch=Epoch((3 << 32) | 7),
    leading=True,
    serial=12,
    endpoints=(
        Endpoint(
            id=EndpointId("e"),
            url="http://[::1]:20000",
            models=(MODEL, ModelName("alias")),
            engine="vllm",
            pool="p",
            weight=0.5,
            priority=-3,
            incarnation="i",
            credential=Secret("k3y\u2028\n"),
            headers={"x-a": "é"},
            health_path=None,
            metrics_path="/metrics",
            max_inflight=64,
            served_name=ModelName("served"),
            cancels_plain_requests=False,
            node=NodeId("n"),
            replica=ReplicaId("r"),
            draining=True,
        ),
        Endpoint(id=EndpointId("f"), url="http://x", models=(MODEL,)),
    ),
    models=(
        ModelStatus(
            names=(MODEL,),
            state=ModelState.UNPLACEABLE,
            expected_wait_s=4.5,
            refusal=Refusal(
                code="no_devices",
                sentence="needs 2 devices\nand\u2028more",
                model=MODEL,
                profile=ProfileName("p"),
                node=NodeId("n"),
                need="2",
                have="1",
                hint="add one",
                parts=(Refusal(code="inner", sentence="inner"),),
            ),
            routing="prefix",
            created=5,
        ),
    ),
    keys=(
        ApiKey(
            id="k",
            secret_hash="0" * 64,
            name="n",
            scopes=(Scope.MODELS,),
            models=(MODEL,),
            limits=KeyLimits(requests_per_minute=1, tokens_per_month=2),
            expires_at=1.5,
        ),
        ApiKey(id="l", secret_hash="1" * 64),
    ),
)


def test_a_snapshot_comes_back_whole_and_is_one_line() -> None:
    line = encode_line(SNAPSHOT)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == SNAPSHOT


def test_the_lines_are_told_apart() -> None:
    spend = FeedSpend(spend=(KeySpend(key="k", day=1, day_tokens=2, month=3, month_tokens=4),))
    assert decode_line(encode_line(spend)) == spend
    assert decode_line(encode_line(FeedPulse())) == FeedPulse()


def test_a_report_comes_back_whole() -> None:
    report = RouterReport(
        router="r",
        applied=3,
        usage=RouterUsage(
            endpoints={
                EndpointId("e"): EndpointUsage(idle_s=None, in_flight=0),
                EndpointId("f"): EndpointUsage(idle_s=1.5, in_flight=2),
            },
            queued={MODEL: 4},
        ),
        batch=UsageBatch(
            id="b",
            records=(UsageRecord(at=1.0, key="", model=MODEL, endpoint=None, status=499),),
        ),
        nudges=(MODEL,),
        wants=RouterWants(
            keys={"k": KeyWant(requests_per_minute=1, tokens_per_minute=2, concurrent_requests=3)},
            endpoints={EndpointId("e"): 4},
        ),
        serial=5,
        routers=6,
    )
    assert decode_report(encode_report(report)) == report


def test_shares_come_back_whole() -> None:
    shares = RouterShares(
        serial=1,
        routers=2,
        keys={"k": KeyLimits(requests_per_minute=3)},
        endpoints={EndpointId("e"): 4},
    )
    assert decode_shares(encode_shares(shares)) == shares


def test_the_answer_of_a_server_that_shares_nothing_out_leaves_all_to_the_router() -> None:
    assert decode_shares(b'{"done":true}') == RouterShares()


def test_a_field_of_a_newer_server_is_skipped() -> None:
    line = encode_line(SNAPSHOT).replace(b'"serial":12', b'"serial":12,"colour":{"a":[1]}')
    assert decode_line(line) == SNAPSHOT


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"{}", b'{"type":"unknown"}', b'{"type":"snapshot"}', b"\xff"]
)
def test_what_is_no_line_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_line(line)


def test_no_secret_is_shown_by_printing_a_snapshot() -> None:
    assert "k3y" not in repr(SNAPSHOT)
