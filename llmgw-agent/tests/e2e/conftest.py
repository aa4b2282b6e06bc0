"""What the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.testing.site import Site
from llmgw.testing.tiny_gguf import write_tiny_gguf


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def module_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights that llama.cpp loads in a tenth of a second."""
    path = tmp_path_factory.mktemp("weights") / "tiny.gguf"
    write_tiny_gguf(path)
    return path
