"""A look into the running process."""

from __future__ import annotations

import importlib.util

import httpx
import pytest

pytestmark = pytest.mark.anyio


async def test_the_process_is_profiled_or_the_package_that_does_it_is_named(
    admin: httpx.AsyncClient,
) -> None:
    answer = await admin.get("/debug/profile?seconds=0.05")
    if importlib.util.find_spec("pyinstrument") is None:
        assert answer.status_code == 501
        assert "pip install pyinstrument" in answer.text
    else:
        assert answer.status_code == 200
        assert "Duration" in answer.text


async def test_a_profile_without_end_is_refused(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/debug/profile?seconds=86400")
    assert answer.status_code == 400
    assert "seconds" in answer.text
