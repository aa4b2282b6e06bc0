"""What tests of a server share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The one that servers run on; uvicorn knows no other."""
    return "asyncio"
