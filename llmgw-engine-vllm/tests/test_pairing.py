from __future__ import annotations

import json

import pytest

from llmgw.contracts.pairing import HandoverMissing, Pairs, SharedRequest
from llmgw_engine_vllm.adapter import VllmAdapter

PAIRING = VllmAdapter().pairing


def request(path: str = "/v1/chat/completions", copies: int = 1) -> SharedRequest:
    return SharedRequest(path=path, copies=copies, host="10.0.0.1", meeting_port=None, number=7)


def test_the_adapter_can_pair() -> None:
    assert isinstance(VllmAdapter(), Pairs)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_the_prefill_engine_is_asked_for_one_token_that_another_will_go_on_from(path: str) -> None:
    halves = PAIRING.share(request(path))
    assert halves is not None
    assert halves.decode is None
    assert halves.prefill["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert halves.prefill["stream"] is False
    assert halves.prefill["max_tokens"] == 1
    # None: left out of the body.
    assert halves.prefill["stream_options"] is halves.prefill["min_tokens"] is None
    chat = path == "/v1/chat/completions"
    assert halves.prefill["max_completion_tokens"] == (1 if chat else None)


@pytest.mark.parametrize(
    ("path", "copies"),
    [("/v1/chat/completions", 2), ("/v1/responses", 1), ("/tokenize", 1), ("/v1/embeddings", 1)],
)
def test_what_cannot_be_shared_is_left_to_the_decode_engine(path: str, copies: int) -> None:
    assert PAIRING.share(request(path, copies)) is None


def test_what_the_prefill_engine_says_of_its_cache_goes_on_as_it_is() -> None:
    said = {"remote_engine_id": "e", "remote_block_ids": [[1, 2]], "remote_host": "h", "tp_size": 2}
    answer = {"choices": [{"finish_reason": "length"}], "kv_transfer_params": said, "usage": {}}
    assert PAIRING.handed_over(json.dumps(answer).encode()) == {"kv_transfer_params": said}


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"finish_reason": "stop"}], "kv_transfer_params": None},
        {"stop_reason": "end_turn", "content": []},
    ],
)
def test_an_answer_that_ends_with_its_first_token_needs_no_cache(answer: object) -> None:
    assert PAIRING.handed_over(json.dumps(answer).encode()) == {}


@pytest.mark.parametrize(
    "answer",
    [b'{"choices": [{"finish_reason": "length"}]}', b"<html>", b"[]", b'{"kv_transfer_params": 1}'],
)
def test_an_engine_without_a_connector_is_found_out(answer: bytes) -> None:
    with pytest.raises(HandoverMissing):
        PAIRING.handed_over(answer)


def test_clients_cannot_name_the_cache_of_another() -> None:
    assert "kv_transfer_params" in PAIRING.reserved
