"""The official OpenAI client for Node.js: `openai_node.cjs` uses it, and here is what must come out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js: there is no `node`"),
]


@pytest.fixture(scope="module")
def told(gateway: Any) -> dict[str, Any]:
    """What the client was told; NODE_PATH names the folder with the package `openai`."""
    program = Path(__file__).with_name("openai_node.cjs")
    given = {
        "BASE_URL": gateway.base_url,
        "KEY": gateway.key,
        "CHAT": gateway.chat_model,
        "EMBED": gateway.embedding_model,
        "CALLER": gateway.calling_model,
        "QUESTION": gateway.question,
    }
    done = subprocess.run(
        ["node", str(program)],
        capture_output=True,
        text=True,
        env={**os.environ, **given},
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_models_are_listed_and_retrieved(told: dict[str, Any], gateway: Any) -> None:
    assert gateway.embedding_model in told["models"]
    assert told["retrieved"] == gateway.embedding_model


def test_a_chat_is_answered_and_streamed(told: dict[str, Any]) -> None:
    assert "Paris" in told["chat"]
    assert told["usage"]["completion_tokens"] > 0
    assert told["streamed"] == told["chat"]
    assert told["streamed_usage"]["completion_tokens"] > 0


def test_a_tool_is_called(told: dict[str, Any]) -> None:
    assert told["tool"]["name"] == "get_weather"
    assert json.loads(told["tool"]["arguments"]) == {"city": "Paris"}


def test_an_answer_keeps_to_a_json_schema(told: dict[str, Any]) -> None:
    assert set(json.loads(told["structured"])) == {"city"}


def test_packed_vectors_hold_the_numbers_of_the_plain_ones(told: dict[str, Any]) -> None:
    """The client asks for base64 by itself and unpacks it (C069)."""
    for packed, plain in zip(told["vectors"], told["plain"], strict=True):
        assert packed == pytest.approx(plain, rel=1e-6)


def test_refusals_have_their_codes(told: dict[str, Any]) -> None:
    assert told["unknown_model"] == {
        "kind": "NotFoundError",
        "status": 404,
        "code": "model_not_found",
        "param": "model",
    }
    assert told["wrong_key"]["kind"] == "AuthenticationError"
    assert told["wrong_key"]["code"] == "invalid_api_key"
