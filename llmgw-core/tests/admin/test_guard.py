"""What browsers must not be made to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest

pytestmark = pytest.mark.anyio

Connect = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:8081", "", "[", "127.0.0.2"]
)
async def test_a_name_that_is_not_ours_is_refused_before_the_token_is_looked_at(
    connect: Connect, host: str
) -> None:
    """DNS rebinding: the browser believes that our loopback address is the attacker's site."""
    answer = await (await connect(None)).get("/status", headers={"host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8081", "127.0.0.1:1", "[::1]:8081"])
async def test_our_own_names_are_accepted(admin: httpx.AsyncClient, host: str) -> None:
    assert (await admin.get("/status", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8081", 200),
        ("http://evil.example", 403),
        ("http://localhost:9999", 403),
        ("null", 403),
    ],
)
async def test_a_change_asked_for_by_another_sites_page_is_refused(
    admin: httpx.AsyncClient, origin: str, status: int
) -> None:
    answer = await admin.post("/keys", json={"name": "x"}, headers={"origin": origin})
    assert answer.status_code == status


async def test_every_answer_forbids_scripts_framing_and_guessing(
    connect: Connect, admin: httpx.AsyncClient
) -> None:
    for answer in (
        await admin.get("/status"),
        await admin.get("/nothing-here"),
        await (await connect(None)).get("/status"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        # With no-referrer browsers send `Origin: null` even with our own forms.
        assert answer.headers["referrer-policy"] == "same-origin"
