"""The model of a multipart form."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.errors import RequestError
from llmgw.router.ingress.form import read_form
from llmgw.testing.engine_script import ScriptedEngine
from llmgw.testing.raw_http import post

TYPE = b'multipart/form-data; boundary="xyz"'


def form(*fields: tuple[str, bytes]) -> bytes:
    parts = [
        f"--xyz\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode() + value + b"\r\n"
        for name, value in fields
    ]
    return b"".join(parts) + b"--xyz--\r\n"


FILE = (
    'name="file"; filename="a.wav"\r\nContent-Type: audio/wav',
    b'\x00\r\n--x name="model"\r\n\r\nno',
)


def test_the_model_is_found_with_its_place() -> None:
    body = form(FILE, ('name="model"', b"demo"), ('name="stream"', b"true"))
    model, (start, end), stream = read_form(body, TYPE)
    assert (model, body[start:end], stream) == ("demo", b"demo", True)


def test_a_file_called_model_is_no_model() -> None:
    body = form(('name="model"; filename="model"', b"demo"))
    with pytest.raises(RequestError) as refused:
        read_form(body, TYPE)
    assert refused.value.param == "model"


def test_two_models_are_refused() -> None:
    with pytest.raises(RequestError) as refused:
        read_form(form(('name="model"', b"a"), ('name="model"', b"b")), TYPE)
    assert refused.value.code == "duplicate_parameter"


def test_a_form_of_more_than_a_thousand_parts_is_refused() -> None:
    body = form(*[("", b"")] * 2000, ('name="model"', b"demo"))
    with pytest.raises(RequestError) as refused:
        read_form(body, TYPE)
    assert refused.value.code == "too_many_parts"
    assert read_form(form(*[("", b"")] * 500, ('name="model"', b"demo")), TYPE)[0] == "demo"


@pytest.mark.parametrize("content_type", [b"application/json", b"multipart/form-data", b""])
def test_another_content_type_is_refused(content_type: Any) -> None:
    with pytest.raises(RequestError):
        read_form(form(('name="model"', b"a")), content_type)


@pytest.mark.anyio
async def test_a_form_reaches_the_engine_with_the_name_that_it_knows(
    start_router: Any, make_endpoint: Any
) -> None:
    body = form(('name="model"', b"demo"), FILE)
    async with ScriptedEngine() as engine:
        router = await start_router(endpoints=[make_endpoint(engine.url, served_name="whisper")])
        request = post("/v1/audio/transcriptions", body, headers={"content-type": TYPE.decode()})
        answer = await router.ask(request)
    assert answer.status == 200
    assert engine.requests[0].body == form(('name="model"', b"whisper"), FILE)
    assert engine.requests[0].header("content-type") == TYPE.decode()
