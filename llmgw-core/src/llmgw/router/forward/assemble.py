"""A stream folded into the plain answer that the client asked for.

llama.cpp goes on generating after the client of a plain request has left, but stops for the
client of a stream. So such engines are always asked for a stream, and the answer is put
together here. Fields that this file does not know are kept: the newest value wins.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.router.routes import Assembly

_decoder = msgspec.json.Decoder()
_JOINED = frozenset({"content", "reasoning_content", "reasoning", "refusal", "arguments", "text"})
_KEPT_WHOLE = frozenset({"id", "type", "role", "name", "index"})

Fields = dict[str, Any]  # JSON as it came; nothing here relies on more than what it checks


class Assembler:
    """Takes the data of each event, in order."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._answer: Fields = {}
        self._choices: dict[int, Fields] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no event with an answer has come."""
        return not self._answer

    def add(self, data: bytes) -> None:
        """Fold one event in. Raises msgspec.DecodeError if it is not a JSON object."""
        chunk = _decoder.decode(data)
        if not isinstance(chunk, dict):
            raise msgspec.DecodeError("an event of the stream is not an object")
        for key, value in chunk.items():
            if key != "choices" and (value is not None or key not in self._answer):
                self._answer[key] = value
        for choice in chunk.get("choices") or ():
            if isinstance(choice, dict):
                self._add_choice(choice)

    def _add_choice(self, choice: Fields) -> None:
        index = choice.get("index", 0)
        kept = self._choices.setdefault(index if isinstance(index, int) else 0, {"index": index})
        for key, value in choice.items():
            if key == "delta" and isinstance(value, dict):
                _add_delta(kept.setdefault("message", {}), value)
            elif key == "logprobs" and isinstance(value, dict):
                _add_lists(kept.setdefault("logprobs", {}), value)
            elif key == "text" and isinstance(value, str):
                kept["text"] = kept.get("text", "") + value
            elif value is not None or key not in kept:
                kept[key] = value
            if key == "logprobs" and kept.get("logprobs") is None:
                # A later chunk may bring them; `setdefault` must find no None then.
                del kept["logprobs"]

    def answer(self) -> bytes:
        """Return the plain answer as JSON."""
        chat = self._assembly is Assembly.CHAT
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            choice.setdefault("logprobs", None)
            choice.setdefault("finish_reason", None)
            if chat:
                message = choice.setdefault("message", {})
                message.setdefault("role", "assistant")
                message.setdefault("content", None)
                _plain_calls(message)
            else:
                choice.setdefault("text", "")
        whole = {**self._answer, "choices": choices}
        whole["object"] = "chat.completion" if chat else "text_completion"
        return msgspec.json.encode(whole)


def _add_delta(message: Fields, delta: Fields) -> None:
    for key, value in delta.items():
        if value is None:
            message.setdefault(key, None)
        elif key == "tool_calls" and isinstance(value, list):
            calls = message.get(key)
            if calls is None:
                calls = message[key] = []
            for piece in value:
                if isinstance(piece, dict):
                    _add_call(calls, piece)
        elif key == "function_call" and isinstance(value, dict):
            call = message.get(key)
            if call is None:
                call = message[key] = {}
            _add_strings(call, value)
        elif key in _JOINED and isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        elif isinstance(value, list) and isinstance(message.get(key), list):
            message[key] += value
        else:
            message[key] = value


def _add_call(calls: list[Fields], piece: Fields) -> None:
    index = piece.get("index")
    for call in calls:
        if call.get("index") == index and (index is not None or not piece.get("id")):
            break
    else:
        call = {"index": index}
        calls.append(call)
    for key, value in piece.items():
        if key == "function" and isinstance(value, dict):
            _add_strings(call.setdefault("function", {}), value)
        elif value is not None and not (key in _KEPT_WHOLE and call.get(key)):
            call[key] = value


def _add_strings(kept: Fields, piece: Fields) -> None:
    for key, value in piece.items():
        if value is None:
            continue
        if key in _JOINED and isinstance(value, str):
            kept[key] = kept.get(key, "") + value
        elif not kept.get(key):
            kept[key] = value


def _add_lists(kept: Fields, piece: Fields) -> None:
    for key, value in piece.items():
        if isinstance(value, list) and isinstance(kept.get(key), list):
            kept[key] += value
        elif value is not None or key not in kept:
            kept[key] = value


def _plain_calls(message: Fields) -> None:
    """Take out the indices that only a stream has, and a delta's empty list."""
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
        return
    calls.sort(key=lambda call: call["index"] if isinstance(call.get("index"), int) else 0)
    for call in calls:
        call.pop("index", None)
        if isinstance(call.get("function"), dict):
            call["function"].setdefault("arguments", "")
