"""Whose request it is that a proxy brings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.config.server import RouterSettings
from llmgw.router.front.proxies import Proxies
from llmgw.testing.engine_script import ScriptedEngine
from llmgw.testing.raw_http import post

OURS = Proxies(["10.0.0.0/8", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ([], "10.0.0.1"),
        (["203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        (["198.51.100.1", "203.0.113.7,10.0.0.2"], "203.0.113.7"),
        (["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (["203.0.113.7:51000"], "203.0.113.7"),
        (["[2001:db9::1]:51000"], "2001:db9::1"),
        (["2001:db9::1, 2001:db8::7"], "2001:db9::1"),
        (["::ffff:203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7, unknown"], "10.0.0.1"),
        (["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
        (["203.0.113.7, \xff"], "10.0.0.1"),
        ([""], "10.0.0.1"),
    ],
)
def test_the_last_address_that_no_proxy_of_ours_has(told: list[str], client: str) -> None:
    """What stands before it, the client may have written itself."""
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in told]
    assert OURS.client("10.0.0.1", [(b"host", b"t"), *headers]) == client


def test_nobody_is_trusted_unless_told_so() -> None:
    assert not any(Proxies().trusts(address) for address in ("127.0.0.1", "10.0.0.1", "::1", ""))
    trusted = ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8::1%eth0")
    assert all(OURS.trusts(address) for address in trusted)
    assert not any(OURS.trusts(address) for address in ("11.0.0.1", "::1", "", "proxy"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("trusted", "client"), [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.7")]
)
async def test_the_access_log_names_the_client_and_not_its_proxy(
    start_router: Any, trusted: tuple[str, ...], client: str
) -> None:
    settings = RouterSettings(trusted_proxies=trusted)
    async with ScriptedEngine() as engine:
        router = await start_router(engine.url, settings=settings)
        forwarded = {"x-forwarded-for": "198.51.100.1, 203.0.113.7"}
        for _ in range(2):  # the second time by a head that is remembered
            asked = post("/v1/chat/completions", {"model": "demo"}, headers=forwarded)
            assert (await router.ask(asked)).status == 200
        assert engine.requests[0].header("x-forwarded-for") is None
    router.router._access.close()
    lines = router.access.getvalue().splitlines()
    assert [json.loads(line)["client"] for line in lines] == [client] * 2


@pytest.mark.anyio
async def test_wrong_keys_are_counted_by_client_and_not_by_proxy(start_router: Any) -> None:
    settings = RouterSettings(trusted_proxies=("127.0.0.1",))
    router = await start_router(settings=settings, keys_open=False)

    async def status(client: str) -> int:
        headers = {"authorization": "Bearer llmgw_a_b", "x-forwarded-for": client}
        answer = await router.ask(post("/v1/chat/completions", {"model": "demo"}, headers=headers))
        status: int = answer.status
        return status

    statuses = [await status("203.0.113.7") for _ in range(61)]
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert await status("203.0.113.8") == 401
