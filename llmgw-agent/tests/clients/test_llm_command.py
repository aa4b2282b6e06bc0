"""The `llm` command line, with llmgw declared in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Llm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def llm(gateway: Any, tmp_path: Path) -> Llm:
    """Return a function that runs one command with settings of its own."""
    declared = {
        "model_id": "gateway",
        "model_name": "smollm2",
        "api_base": gateway.base_url,
        "api_key_name": "gateway",
        "supports_tools": True,
        "supports_schema": True,
    }
    (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump([declared]))

    def run(*arguments: str, key: str = gateway.key) -> subprocess.CompletedProcess[str]:
        (tmp_path / "keys.json").write_text(json.dumps({"gateway": key}))
        return subprocess.run(
            [sys.executable, "-m", "llm", *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            timeout=120,
            check=False,
        )

    return run


def test_it_asks_and_streams(llm: Llm, gateway: Any) -> None:
    for more in ((), ("--no-stream",)):
        done = llm("-m", "gateway", "-o", "temperature", "0", *more, gateway.question)
        assert done.returncode == 0, done.stderr
        assert "Paris" in done.stdout


def test_it_gets_an_answer_by_a_schema(llm: Llm, gateway: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    options = ("-o", "temperature", "0", "-o", "max_tokens", "60")
    done = llm("-m", "gateway", *options, "--schema", json.dumps(schema), gateway.question)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"city"}


def test_it_shows_the_gateways_words_for_a_wrong_key(llm: Llm, gateway: Any) -> None:
    done = llm("-m", "gateway", gateway.question, key="wrong")
    assert done.returncode == 1
    assert "the API key is not valid" in done.stderr
