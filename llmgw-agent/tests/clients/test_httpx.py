"""A plain HTTP client, as gateways and scripts use one: what the SDKs hide is looked at here."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def chat(gateway: Any) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "max_tokens": 24,
        "temperature": 0,
        "messages": [{"role": "user", "content": gateway.question}],
    }


def test_a_plain_answer_says_where_it_went(gateway: Any, chat: dict[str, Any]) -> None:
    answer = gateway.post("/v1/chat/completions", chat)
    assert answer.status_code == 200
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    for header in ("x-request-id", "x-llmgw-endpoint", "x-llmgw-model", "x-llmgw-attempts"):
        assert answer.headers[header]
    assert "llama" not in answer.headers.get("server", "").lower()


def test_a_stream_ends_with_done_and_is_not_to_be_buffered(
    gateway: Any, chat: dict[str, Any]
) -> None:
    url = f"{gateway.base_url}/chat/completions"
    headers = {"authorization": f"Bearer {gateway.key}"}
    body = {**chat, "stream": True}
    with httpx.stream(
        "POST", url, json=body, headers=headers, trust_env=False, timeout=60
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert lines[-1] == "data: [DONE]"
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces)
    assert "Paris" in text


def test_one_connection_carries_many_requests(gateway: Any, chat: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {gateway.key}"}
    with httpx.Client(trust_env=False, timeout=60, headers=headers) as client:
        for number in range(10):
            body = {**chat, "max_tokens": 1, "stream": number % 2 == 1}
            answer = client.post(f"{gateway.base_url}/chat/completions", json=body)
            assert answer.status_code == 200
            assert client.get(f"{gateway.base_url}/models").status_code == 200


def test_packed_vectors_hold_the_numbers_of_the_plain_ones(gateway: Any) -> None:
    asked = {"model": gateway.embedding_model, "input": "four words of text"}
    plain = gateway.post("/v1/embeddings", {**asked, "encoding_format": "float"}).json()
    packed = gateway.post("/v1/embeddings", {**asked, "encoding_format": "base64"}).json()
    numbers = plain["data"][0]["embedding"]
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack(f"<{len(numbers)}f", raw) == pytest.approx(numbers, rel=1e-6)


def test_vectors_of_a_model_that_has_none_are_a_clear_error(gateway: Any) -> None:
    answer = gateway.post("/v1/embeddings", {"model": "smollm2", "input": "x"})
    assert 400 <= answer.status_code <= 501
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_tokens_and_their_text_are_each_others_reverse(gateway: Any) -> None:
    tokens = gateway.post("/tokenize", {"model": "smollm2", "content": "Hello, world"}).json()
    text = gateway.post("/detokenize", {"model": "smollm2", "tokens": tokens["tokens"]}).json()
    assert text["content"] == "Hello, world"
