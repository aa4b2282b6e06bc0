"""Long work that operators asked nodes for."""

from __future__ import annotations

import pytest

from llmgw.admin.jobs import Jobs
from llmgw.domain.ids import NodeId
from llmgw.domain.replicas import Progress
from llmgw.errors import PermanentError
from llmgw.testing.clock import FakeClock

HALF = Progress(what="fetching weights", done=1.0, total=2.0, unit="bytes")


def test_a_job_shows_how_far_it_is_and_how_it_ended() -> None:
    jobs, clock = Jobs(), FakeClock()
    with jobs.running(NodeId("a"), "weights", "hf:o/n@main", who="ada", clock=clock) as heard:
        assert (jobs.list()[0].state, jobs.list()[0].progress) == ("running", None)
        heard(HALF)
        assert jobs.list()[0].progress == HALF
    assert (jobs.list()[0].state, jobs.list()[0].progress) == ("done", HALF)


def test_what_fails_keeps_its_reason_and_goes_on_to_who_asked() -> None:
    jobs, clock = Jobs(), FakeClock()
    with (
        pytest.raises(PermanentError),
        jobs.running(NodeId("a"), "engine", "vllm 1", who="ada", clock=clock),
    ):
        raise PermanentError("no lock for vllm 1\nand more")
    assert (jobs.list()[0].state, jobs.list()[0].problem) == ("failed", "no lock for vllm 1")


def test_the_oldest_go_and_what_is_heard_of_them_is_dropped() -> None:
    jobs, clock = Jobs(keep=1), FakeClock()
    with jobs.running(NodeId("a"), "weights", "one", who="ada", clock=clock) as heard:
        with jobs.running(NodeId("a"), "weights", "two", who="ada", clock=clock):
            pass
        heard(HALF)
    assert [(job.subject, job.progress) for job in jobs.list()] == [("two", None)]
