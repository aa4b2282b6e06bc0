"""What keeps the giving of weights within its bounds: a server's word, and a rate."""

from __future__ import annotations

import threading
import time

import pytest

from llmgw.domain.ids import NodeId
from llmgw.testing.clock import FakeClock
from llmgw_agent.node.weights.admissions import Admissions
from llmgw_agent.node.weights.pace import Pace

A, B = NodeId("a"), NodeId("b")


@pytest.mark.anyio
async def test_a_servers_word_is_for_one_node_one_set_of_weights_and_a_while() -> None:
    clock = FakeClock()
    admissions = Admissions(clock)
    admissions.admit(A, "one", for_s=300)
    assert admissions.wait_admitted(A, "one", 0)
    assert not admissions.wait_admitted(A, "two", 0)
    assert not admissions.wait_admitted(B, "one", 0)
    await clock.advance(299)
    assert admissions.wait_admitted(A, "one", 0)
    admissions.admit(B, "two", for_s=300)
    await clock.advance(2)
    assert not admissions.wait_admitted(A, "one", 0)
    assert admissions.wait_admitted(B, "two", 0)


def test_a_node_that_is_quicker_than_the_word_about_it_is_let_in() -> None:
    admissions = Admissions(FakeClock())
    word = threading.Timer(0.05, lambda: admissions.admit(A, "one", for_s=300))
    word.start()
    assert admissions.wait_admitted(A, "one", 5)


def test_several_that_send_share_one_rate() -> None:
    pace = Pace(1_000_000)
    threads = [threading.Thread(target=pace.wait, args=(200_000,)) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 0.8 s worth of bytes, less the quarter of a second that may be made up for.
    assert time.monotonic() - began >= 0.5
