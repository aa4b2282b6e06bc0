from __future__ import annotations

import pytest

from llmgw.contracts.pairing import Pairs, SharedRequest
from llmgw.errors import RequestError
from llmgw_engine_sglang.adapter import SglangAdapter

PAIRING = SglangAdapter().pairing


def request(path: str = "/v1/chat/completions", port: int | None = 20002) -> SharedRequest:
    return SharedRequest(path=path, copies=3, host="10.0.0.1", meeting_port=port, number=7)


def test_the_adapter_can_pair() -> None:
    assert isinstance(SglangAdapter(), Pairs)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
)
def test_both_are_told_at_once_where_they_meet(path: str) -> None:
    halves = PAIRING.share(request(path))
    assert halves is not None
    assert halves.prefill == halves.decode
    assert halves.decode == {
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 20002,
        "bootstrap_room": 7,
    }


def test_an_endpoint_that_names_no_port_has_the_usual_one() -> None:
    halves = PAIRING.share(request(port=None))
    assert halves is not None
    assert halves.prefill["bootstrap_port"] == 8998


def test_what_generates_nothing_is_left_to_one_engine() -> None:
    assert PAIRING.share(request("/tokenize")) is None


def test_half_a_pair_does_nothing_else() -> None:
    with pytest.raises(RequestError, match="/v1/embeddings") as caught:
        PAIRING.share(request("/v1/embeddings"))
    assert caught.value.status == 404


def test_clients_cannot_choose_the_meeting_place() -> None:
    assert {"bootstrap_host", "bootstrap_port", "bootstrap_room"} <= PAIRING.reserved
