"""The official OpenAI client in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CAPITAL: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "capital",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "millions": {"type": "integer"},
            },
            "required": ["city", "millions"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client(gateway: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0) as made:
        yield made


@pytest.fixture
def messages(gateway: Any) -> Any:
    return [{"role": "user", "content": gateway.question}]


def test_models_are_listed_and_retrieved(client: openai.OpenAI, gateway: Any) -> None:
    listed = {model.id for model in client.models.list()}
    assert listed == {"smollm2", "default", gateway.embedding_model, gateway.calling_model}
    assert client.models.retrieve(gateway.embedding_model).id == gateway.embedding_model


def test_a_chat_is_answered(client: openai.OpenAI, messages: Any) -> None:
    done = client.chat.completions.create(
        model="default", messages=messages, max_tokens=32, temperature=0
    )
    assert "Paris" in (done.choices[0].message.content or "")
    assert done.model == "default"
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


def test_a_stream_has_no_usage_unless_asked(client: openai.OpenAI, messages: Any) -> None:
    stream = client.chat.completions.create(
        model="smollm2", messages=messages, max_tokens=24, temperature=0, stream=True
    )
    chunks = list(stream)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_a_stream_ends_with_its_usage_where_asked(client: openai.OpenAI, messages: Any) -> None:
    *pieces, last = client.chat.completions.create(
        model="smollm2",
        messages=messages,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert all(chunk.choices for chunk in pieces)
    assert last.choices == []
    assert last.usage is not None
    assert 0 < last.usage.completion_tokens <= 8


def test_the_stream_helper_of_the_client_reads_it_too(client: openai.OpenAI, messages: Any) -> None:
    with client.chat.completions.stream(
        model="smollm2", messages=messages, max_tokens=24, temperature=0
    ) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert "Paris" in (final.choices[0].message.content or "")


def test_a_tool_is_called_with_its_arguments(client: openai.OpenAI, gateway: Any) -> None:
    done = client.chat.completions.create(
        model=gateway.calling_model,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[WEATHER],
        tool_choice="required",
    )
    (call,) = done.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert done.choices[0].finish_reason == "tool_calls"


def test_a_streamed_tool_call_comes_in_pieces_that_join(
    client: openai.OpenAI, gateway: Any
) -> None:
    with client.chat.completions.stream(
        model=gateway.calling_model,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[WEATHER],
    ) as stream:
        pieces = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert pieces >= 3
    assert (call.id, call.function.name) == ("call_1", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_an_answer_to_a_tool_call_goes_on_with_the_talk(client: openai.OpenAI) -> None:
    call: Any = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    done = client.chat.completions.create(
        model="smollm2",
        messages=[
            {"role": "user", "content": "What is the weather in Paris?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
        ],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=24,
    )
    assert done.choices[0].message.content


def test_an_answer_keeps_to_a_json_schema(client: openai.OpenAI, messages: Any) -> None:
    done = client.chat.completions.create(
        model="smollm2",
        messages=messages,
        response_format=CAPITAL,
        max_tokens=80,
        temperature=0,
    )
    answer = json.loads(done.choices[0].message.content or "")
    assert set(answer) == {"city", "millions"}
    assert isinstance(answer["millions"], int)


def test_a_plain_completion_is_answered_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 8}
    assert client.completions.create(**asked, temperature=0).choices[0].text
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(pieces)


def test_a_response_is_answered_and_streamed(client: openai.OpenAI, gateway: Any) -> None:
    asked: Any = {"model": "smollm2", "input": gateway.question, "max_output_tokens": 24}
    done = client.responses.create(**asked, temperature=0)
    assert "Paris" in done.output_text
    events = [event.type for event in client.responses.create(**asked, stream=True)]
    assert events[0] == "response.created"
    assert events[-1] in ("response.completed", "response.incomplete")


@pytest.mark.parametrize("shape", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings_have_one_length_in_every_shape(
    client: openai.OpenAI, gateway: Any, shape: Any
) -> None:
    done = client.embeddings.create(
        model=gateway.embedding_model, input=["one", "two words"], **shape
    )
    assert [item.index for item in done.data] == [0, 1]
    assert done.usage.prompt_tokens > 0
    numbers: Any = [item.embedding for item in done.data]
    if shape.get("encoding_format") != "base64":
        assert {len(vector) for vector in numbers} == {len(numbers[0])}
        assert all(isinstance(number, float) for number in numbers[0])


def test_an_unknown_model_is_not_found(client: openai.OpenAI, messages: Any) -> None:
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nope", messages=messages, stream=stream)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_wrong_key_is_refused(gateway: Any, messages: Any) -> None:
    with openai.OpenAI(base_url=gateway.base_url, api_key="sk-wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model="smollm2", messages=messages)
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_a_prompt_that_is_too_long_is_the_clients_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "word " * 20_000}]
        )
    assert caught.value.code == "context_length_exceeded"


async def test_the_asynchronous_client_may_leave_in_mid_stream(gateway: Any, messages: Any) -> None:
    async with openai.AsyncOpenAI(
        base_url=gateway.base_url, api_key=gateway.key, max_retries=0
    ) as client:
        stream = await client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=400, stream=True
        )
        async for _ in stream:
            break
        await stream.close()
        done = await client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=4
        )
    assert done.choices[0].message.content
