"""Who may call what: every route, with no, a wrong and a low token."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import httpx
import pytest

from llmgw.admin.api import all_operations
from llmgw.admin.operations import Operation
from llmgw.store import Store
from llmgw.store.tokens import Role
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

Connect = Callable[..., Awaitable[httpx.AsyncClient]]
GUARDED = [item for item in all_operations() if item.role is not None]
PUBLIC = [item for item in all_operations() if item.role is None]


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def url_of(operation: Operation) -> str:
    root = operation.path in ("/metrics", "/healthz", "/readyz")
    path = re.sub(r"\{\w+(:path)?\}", "x", operation.path)
    return f"http://localhost:8081{path}" if root else path


@pytest.mark.parametrize("operation", GUARDED, ids=name_of)
@pytest.mark.parametrize("token", [None, "wrong", "llmgwadmin_000000000000_wrong"])
async def test_no_route_answers_without_a_good_token(
    connect: Connect, operation: Operation, token: str | None
) -> None:
    answer = await (await connect(token)).request(operation.method, url_of(operation))
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "operation", [item for item in GUARDED if item.role is not Role.VIEWER], ids=name_of
)
async def test_a_low_role_is_refused_before_anything_is_looked_at(
    connect: Connect, store: Store, operation: Operation
) -> None:
    assert operation.role is not None
    below = list(Role)[operation.role.rank - 1]
    _, token = store.tokens.create("low", below, who="test")
    client = await connect(token.reveal())
    answer = await client.request(operation.method, url_of(operation), content=b"not even JSON")
    assert answer.status_code == 403
    assert f"needs the role {operation.role.value}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("operation", PUBLIC, ids=name_of)
async def test_public_routes_give_nothing_away(connect: Connect, operation: Operation) -> None:
    answer = await (await connect(None)).request(operation.method, url_of(operation))
    assert answer.status_code == 200
    assert answer.text == "ok\n"


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer",
        b"Bearer ",
        b"Basic dGhlLW9wZXJhdG9yJ3Mtb3du",
        "Bearer clé".encode(),
        "Bearer “the-operator's-own”".encode(),
        b"Bearer \xef\xbb\xbfthe-operator's-own",
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 100_000,
        b"",
    ],
)
async def test_an_odd_token_is_a_wrong_token(connect: Connect, header: bytes) -> None:
    """C060"""
    client = await connect(None)
    answer = await client.get("/status", headers=[(b"authorization", header)])
    assert answer.status_code == 401
    assert "the-operator" not in answer.text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_read_in_any_case(connect: Connect, scheme: str) -> None:
    client = await connect(None, authorization=f"{scheme} the-operator's-own")
    assert (await client.get("/status")).status_code == 200


async def test_a_token_from_the_store_opens_until_it_is_revoked_or_over(
    connect: Connect, admin: httpx.AsyncClient, clock: FakeClock
) -> None:
    made = (await admin.post("/tokens", json={"name": "ops", "lifetime_s": 60})).json()
    client = await connect(made["secret"])
    assert (await client.get("/whoami")).json() == {"name": "ops", "role": "viewer"}
    clock.jump_wall(61)
    assert (await client.get("/whoami")).status_code == 401

    other = (await admin.post("/tokens", json={"name": "ops"})).json()
    client = await connect(other["secret"])
    assert (await client.get("/whoami")).status_code == 200
    assert (await admin.delete(f"/tokens/{other['id']}")).status_code == 200
    assert (await (await connect(other["secret"])).get("/whoami")).status_code == 401


@asynccontextmanager
async def held(store: Store) -> AsyncIterator[None]:
    """Let the store answer nobody meanwhile."""
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        over.wait(20)

    async with anyio.create_task_group() as group:
        group.start_soon(store.run, hold)
        await anyio.to_thread.run_sync(begun.wait, 10)
        try:
            yield
        finally:
            over.set()


async def test_who_is_known_need_not_wait_for_a_slow_store(
    connect: Connect, admin: httpx.AsyncClient, store: Store, clock: FakeClock
) -> None:
    """It is then that people look, and the store's own limit is above that of their tools."""
    made = (await admin.post("/tokens", json={"name": "ops"})).json()
    known = await connect(made["secret"])
    assert (await known.get("/whoami")).status_code == 200
    await clock.advance(60)
    async with held(store):
        for client in (admin, known):
            with anyio.fail_after(4):
                assert (await client.get("/whoami")).status_code == 200


async def test_two_that_come_at_once_are_both_known(
    connect: Connect, admin: httpx.AsyncClient
) -> None:
    made = (await admin.post("/tokens", json={"name": "ops"})).json()
    client = await connect(made["secret"])
    statuses: list[int] = []

    async def call() -> None:
        statuses.append((await client.get("/whoami")).status_code)

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(call)
    assert statuses == [200, 200]


async def test_guessing_from_one_address_is_stopped_and_no_other_address_suffers(
    connect: Connect,
) -> None:
    guesser = await connect("wrong", address="192.0.2.7")
    statuses = [(await guesser.get("/status")).status_code for _ in range(25)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert (await (await connect("wrong")).get("/status")).status_code == 401


async def test_a_secret_is_in_the_reply_to_its_making_only(admin: httpx.AsyncClient) -> None:
    """C061"""
    secrets = [
        (await admin.post(path, json=body)).json()["secret"]
        for path, body in (
            ("/keys", {"name": "ci"}),
            ("/tokens", {"name": "ops"}),
            ("/join-tokens", {}),
        )
    ]
    everything = "".join(
        [(await admin.get(path)).text for path in ("/keys", "/tokens", "/join-tokens", "/events")]
    )
    for secret in secrets:
        assert re.split(r"[_.]", secret, maxsplit=2)[2] not in everything
