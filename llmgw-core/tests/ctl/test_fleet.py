"""What the overview says of load, and replicas of their failures."""

from __future__ import annotations

from llmgw.adminapi.fleet import RatesReply, ReplicaReply, ShardReply, StatusReply
from llmgw.ctl.fleet import failures_text, status_text


def load_line(rates: RatesReply | None) -> str:
    reply = StatusReply(version="1", server="s", now=0.0, rates=rates)
    (line,) = (line for line in status_text(reply).splitlines() if line.startswith("load"))
    return line.removeprefix("load").strip()


def test_the_overview_tells_requests_tokens_and_how_long_the_first_one_takes() -> None:
    rates = RatesReply(
        requests_per_s=2.04,
        failed_per_s=0.0,
        output_tokens_per_s=47.9,
        first_token_p50_s=0.006,
        first_token_p99_s=0.0349,
    )
    assert load_line(rates) == (
        "2.0 requests/s, 47.9 tokens/s, first token after 6 ms (p50), 35 ms (p99)"
    )


def test_what_is_not_there_is_not_told() -> None:
    quiet = RatesReply(requests_per_s=1.0, failed_per_s=0.5, output_tokens_per_s=0.0)
    assert load_line(quiet) == "1.0 requests/s, 0.0 tokens/s, 0.5 failed/s"
    assert load_line(None) == "-"


def test_of_a_thousand_problems_the_first_are_shown_and_the_rest_counted() -> None:
    problems = tuple(f"node n{number} is lost" for number in range(1000))
    reply = StatusReply(version="1", server="s", now=0.0, problems=problems)
    lines = [line for line in status_text(reply).splitlines() if line.startswith(("!", "  "))]
    assert lines[0] == "! node n0 is lost"
    assert len(lines) == 21
    assert lines[-1].startswith("  and 980 more:")


def test_a_failure_is_told_with_the_way_out_and_the_last_lines() -> None:
    shard = ShardReply(
        id="m-1-1.0",
        node="gpu-01",
        rank=0,
        state="backoff",
        cause="bad_option",
        message="no such option",
        hint="correct `options`",
        log_tail=tuple(f"line {number}\x1b[2J" for number in range(9)),
    )
    replica = ReplicaReply(
        id="m-1-1", model="m", profile="p", state="backoff", since_at=0.0, shards=(shard,)
    )
    first, way_out, *lines, last = failures_text((replica,)).splitlines()
    assert first == "m-1-1.0 on gpu-01: no such option [bad_option]"
    assert way_out == "  way out: correct 'options'"
    assert lines == [f"  | line {number}\\x1b[2J" for number in range(4, 9)]
    assert last == "  its log: llmgw ctl logs gpu-01 --source m-1-1.0"
