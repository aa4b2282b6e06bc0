"""Errors as engines really write them (recorded; see docs/engines), in OpenAI's form afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmgw.router.replies import error_body, error_event, error_reply, read_engine_error
from llmgw.router.routes import Dialect

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.json"))


def status_of(sample: Path) -> int:
    for word, status in (
        ("unauthorized", 401),
        ("engine-dead", 500),
        ("unknown-model", 404),
        ("lora-missing", 404),
        ("404", 404),
    ):
        if word in sample.name:
            return status
    return 400


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_recorded_error_keeps_its_sense_and_loses_its_server(sample: Any) -> None:
    error = read_engine_error(status_of(sample), sample.read_bytes())
    assert error.message
    for leak in ("/opt", "/venv", "site-packages", "Traceback", ".py"):
        assert leak not in error.message
    assert error.code is None or not error.code.isdigit()
    assert error.param is None or not error.param.startswith("body.")
    assert error.kind in {"invalid_request_error", "api_error", "not_found_error"}


@pytest.mark.parametrize(
    "sample", [one for one in SAMPLES if "context-overflow" in one.name], ids=lambda one: one.stem
)
def test_a_context_that_is_too_long_has_the_code_that_libraries_look_for(sample: Any) -> None:
    assert read_engine_error(400, sample.read_bytes()).code == "context_length_exceeded"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_our_own_credential_is_not_the_client_s_fault(status: Any) -> None:
    error = read_engine_error(status, b'{"error": "Unauthorized"}')
    assert (error.status, error.code) == (502, "engine_credential_refused")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The engine answered with status 400."),
        (b"<html>no</html>", "<html>no</html>"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b'{"error": null, "message": "plain"}', "plain"),
        (b'{"error": 5}', "The engine answered with status 400."),
        (b'"text"', '"text"'),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 5000, "[" * 2000),
    ],
)
def test_a_body_of_any_shape_becomes_an_error(body: Any, message: Any) -> None:
    assert read_engine_error(400, body).message == message


def test_a_url_in_a_message_is_no_path() -> None:
    error = read_engine_error(
        400, b'{"message": "see https://docs.vllm.ai/usr/en and /usr/lib/x.py"}'
    )
    assert error.message == "see https://docs.vllm.ai/usr/en and …"


def test_an_error_inside_a_stream_gets_its_status_from_its_code() -> None:
    assert read_engine_error(200, b'{"error": {"message": "x", "code": 503}}').status == 503
    assert read_engine_error(200, b'{"error": {"message": "x", "code": "odd"}}').status == 500


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (429, "engine_busy"),
        (500, "engine_error"),
        (501, "unsupported_by_engine"),
        (502, "engine_error"),
        (503, "engine_busy"),
    ],
)
def test_no_error_of_an_engine_s_making_is_without_a_code(status: Any, code: Any) -> None:
    assert read_engine_error(status, b'{"error": {"message": "x", "code": 500}}').code == code
    assert read_engine_error(status, b'{"error": {"message": "x", "code": "own"}}').code == "own"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'),
        (404, b'{"detail":"Not Found"}'),
        (405, b'{"detail":"Method Not Allowed"}'),
    ],
)
def test_a_route_that_the_engine_lacks_is_said_to_be_lacking(status: Any, body: Any) -> None:
    error = read_engine_error(status, body)
    assert (error.status, error.code) == (status, "unsupported_by_engine")
    assert "no such route" in error.message


def test_what_else_an_engine_does_not_find_keeps_its_words() -> None:
    assert read_engine_error(404, b'{"message": "no adapter x"}').message == "no adapter x"


def test_anthropic_clients_get_their_own_shape() -> None:
    error = read_engine_error(400, b'{"message": "bad"}')
    assert error_body(error, Dialect.ANTHROPIC) == (
        b'{"type":"error","error":{"type":"invalid_request_error","message":"bad"}}'
    )
    assert error_event(error, Dialect.ANTHROPIC).startswith(b"event: error\ndata: {")


@pytest.mark.parametrize(("seconds", "header"), [(0.0, b"1"), (0.2, b"1"), (6.4, b"7")])
def test_retry_after_is_whole_seconds_of_at_least_one(seconds: Any, header: Any) -> None:
    error = read_engine_error(429, b"{}")
    error.retry_after_s = seconds
    assert dict(error_reply(error).headers)[b"retry-after"] == header
