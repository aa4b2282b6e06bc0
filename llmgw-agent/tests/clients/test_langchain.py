"""LangChain's OpenAI classes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field, SecretStr

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Capital(BaseModel):
    """A capital city."""

    city: str = Field(max_length=20)
    country: str = Field(max_length=20)


def get_weather(city: str) -> str:
    """Return the current weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def chat(gateway: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="smollm2",
        base_url=gateway.base_url,
        api_key=SecretStr(gateway.key),
        temperature=0,
        max_retries=0,
        max_completion_tokens=100,
    )


def test_a_chat_is_answered_with_its_usage(chat: ChatOpenAI, gateway: Any) -> None:
    answer = chat.invoke(gateway.question)
    assert "Paris" in answer.content
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_chat_is_streamed(chat: ChatOpenAI, gateway: Any) -> None:
    pieces = list(chat.stream(gateway.question))
    assert len(pieces) > 5
    assert "Paris" in "".join(str(piece.content) for piece in pieces)


async def test_several_chats_run_at_once(chat: ChatOpenAI, gateway: Any) -> None:
    answers = await chat.abatch([gateway.question] * 4)
    assert all("Paris" in answer.content for answer in answers)


def test_a_bound_tool_is_called(gateway: Any) -> None:
    for stream in (False, True):
        chat = ChatOpenAI(
            model=gateway.calling_model,
            base_url=gateway.base_url,
            api_key=SecretStr(gateway.key),
            streaming=stream,
        )
        answer = chat.bind_tools([get_weather]).invoke("What is the weather in Paris?")
        (call,) = answer.tool_calls
        assert get_weather(**call["args"]) == "sunny in Paris"


def test_an_answer_becomes_an_object_of_its_class(chat: ChatOpenAI, gateway: Any) -> None:
    answer = chat.with_structured_output(Capital, method="json_schema").invoke(gateway.question)
    assert isinstance(answer, Capital)


def test_texts_are_embedded(gateway: Any) -> None:
    embeddings = OpenAIEmbeddings(
        model=gateway.embedding_model,
        base_url=gateway.base_url,
        api_key=SecretStr(gateway.key),
        # Else it sends token numbers of OpenAI's own vocabulary, downloaded from there.
        check_embedding_ctx_length=False,
    )
    first, second = embeddings.embed_documents(["one", "two"])
    assert len(first) == len(second) > 0
