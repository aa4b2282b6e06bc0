"""The official Anthropic client in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def client(gateway: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0) as made:
        yield made


@pytest.fixture
def asked(gateway: Any) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "max_tokens": 32,
        "extra_body": {"temperature": 0},
        "messages": [{"role": "user", "content": gateway.question}],
    }


def test_a_message_is_answered(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    done = client.messages.create(**asked)
    assert done.model == "smollm2"
    assert done.role == "assistant"
    assert "Paris" in done.content[0].text
    assert done.usage.input_tokens > 0
    assert done.usage.output_tokens > 0


def test_a_message_is_streamed(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    with client.messages.stream(**{**asked, "model": "default"}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "Paris" in text
    assert final.content[0].text == text
    assert final.model == "default"
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert final.usage.output_tokens > 0


def test_events_come_in_the_order_of_the_protocol(
    client: anthropic.Anthropic, asked: dict[str, Any]
) -> None:
    types = [event.type for event in client.messages.create(**asked, stream=True)]
    assert types[0] == "message_start"
    assert types[-2:] == ["message_delta", "message_stop"]
    assert "content_block_delta" in types


def test_the_answer_of_a_tool_goes_on_with_the_talk(
    client: anthropic.Anthropic, asked: dict[str, Any]
) -> None:
    tool = {"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}
    use = {"type": "tool_use", "id": "use_1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "use_1", "content": "sunny, 21 degrees"}
    talk = [
        *asked["messages"],
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    done = client.messages.create(**{**asked, "messages": talk, "tools": [tool]})
    assert done.content


def test_tokens_are_counted(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    counted = client.messages.count_tokens(model="smollm2", messages=asked["messages"])
    assert counted.input_tokens > 5


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    for stream in (False, True):
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(**{**asked, "model": "nope"}, stream=stream)
        assert caught.value.body["error"]["type"] == "not_found_error"


def test_a_wrong_key_is_refused(gateway: Any, asked: dict[str, Any]) -> None:
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        client.messages.create(**asked)
    assert caught.value.body["error"]["type"] == "authentication_error"
