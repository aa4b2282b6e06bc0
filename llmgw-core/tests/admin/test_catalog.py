"""The catalog through the API: validated, versioned, recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx
import pytest
import yaml

from llmgw.admin.app import build_admin
from llmgw.admin.parts import AdminParts
from llmgw.domain.catalog import Model
from llmgw.errors import Problem
from llmgw.store import Store

pytestmark = pytest.mark.anyio

Connect = Callable[..., Awaitable[httpx.AsyncClient]]
LLAMA = {"name": "org/llama:8b", "aliases": ["llama"], "idle_after": 900.0, "replicas": {"min": 0}}


async def test_an_entry_is_put_read_and_removed_by_a_name_with_slashes(
    admin: httpx.AsyncClient,
) -> None:
    put = await admin.put("/catalog/org/llama:8b", json={"model": LLAMA})
    assert put.status_code == 200
    got = await admin.get("/catalog/org/llama:8b")
    assert got.json()["model"]["aliases"] == ["llama"]
    assert got.json()["owner"] == "api"
    assert (await admin.delete("/catalog/org/llama:8b")).status_code == 200
    assert (await admin.get("/catalog/org/llama:8b")).status_code == 404


async def test_the_etag_guards_against_somebody_elses_change(admin: httpx.AsyncClient) -> None:
    seen = (await admin.get("/catalog")).headers["etag"]
    first = await admin.post(
        "/catalog", json={"models": [{"name": "a"}]}, headers={"if-match": seen}
    )
    assert first.headers["etag"] == '"1"'
    second = await admin.post(
        "/catalog", json={"models": [{"name": "b"}]}, headers={"if-match": seen}
    )
    assert second.status_code == 412
    assert second.json()["error"]["code"] == "version_conflict"
    assert (await admin.get("/catalog")).headers["etag"] == '"1"'
    odd = await admin.post("/catalog", json={}, headers={"if-match": "yesterday's"})
    assert odd.json()["error"]["code"] == "bad_etag"


async def test_all_problems_of_all_entries_are_told_at_once_and_nothing_changes(
    admin: httpx.AsyncClient,
) -> None:
    answer = await admin.post(
        "/catalog",
        json={"models": [{"name": "good"}, {"name": ".."}, {"name": "x", "replicas": {"min": -1}}]},
    )
    assert answer.status_code == 400
    paths = [problem["path"] for problem in answer.json()["error"]["problems"]]
    assert paths == ["models[1].name", "models[2].replicas.min"]
    assert (await admin.get("/catalog")).json()["entries"] == []


async def test_what_the_control_plane_refuses_is_told_by_the_callers_own_paths(
    parts: AdminParts, admin: httpx.AsyncClient
) -> None:
    def check(models: object) -> list[Problem]:
        assert isinstance(models, tuple)
        return [
            Problem(path=f"models[{index}].profiles[0].engine", message="unknown engine 'vlm'")
            for index, model in enumerate(models)
            if model.name == "bad"
        ]

    await admin.post("/catalog", json={"models": [{"name": "there"}]})
    picky = replace(parts, check_catalog=check)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(build_admin(picky)),
        base_url="http://localhost/admin/v1",
        headers=admin.headers,
    ) as client:
        bad = {"models": [{"name": "bad"}]}
        answers = [await client.post(path, json=bad) for path in ("/plan", "/catalog")]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["problems"] == [
            {"path": "models[0].profiles[0].engine", "message": "unknown engine 'vlm'"}
        ]
    assert len((await admin.get("/catalog")).json()["entries"]) == 1


async def test_history_and_rollback(admin: httpx.AsyncClient) -> None:
    await admin.post("/catalog", json={"models": [{"name": "a"}]})
    await admin.post("/catalog", json={"models": [{"name": "b"}], "remove": ["a"]})
    assert (await admin.post("/rollback", json={"version": 1})).status_code == 200
    entries = (await admin.get("/catalog")).json()["entries"]
    assert [entry["name"] for entry in entries] == ["a"]
    history = (await admin.get("/history", params={"limit": 2})).json()
    assert [item["version"] for item in history["changes"]] == [5, 4]
    older = (await admin.get("/history", params={"before": history["next"]})).json()
    assert [item["version"] for item in older["changes"]] == [3, 2, 1]


async def test_an_export_is_a_file_that_can_be_applied(admin: httpx.AsyncClient) -> None:
    await admin.post("/catalog", json={"models": [LLAMA, {"name": "b"}]})
    exported = yaml.safe_load((await admin.get("/export")).text)
    again = await admin.post("/catalog", json={"models": exported["models"]})
    assert again.json()["changes"] == []


async def test_a_files_entry_is_not_changed_through_the_api(
    admin: httpx.AsyncClient, store: Store
) -> None:
    store.catalog.replace_owned("file:chat.yaml", [Model(name="a")], who="llmgw")
    answer = await admin.delete("/catalog/a")
    assert answer.status_code == 409
    assert "chat.yaml" in answer.json()["error"]["message"]


async def test_every_change_is_in_the_timeline_with_who_and_what(
    admin: httpx.AsyncClient,
) -> None:
    for _ in range(2):  # the second time nothing changes, and nothing is recorded
        await admin.put("/catalog/a", json={"model": {"name": "a"}})
    (event,) = (await admin.get("/events")).json()["events"]
    assert (event["who"], event["kind"], event["subject"]) == (
        "admin.token",
        "catalog_changed",
        "model a",
    )
    assert event["after"][0]["model"] == {"name": "a"}


async def test_a_server_without_a_store_says_what_to_set(
    parts: AdminParts, admin: httpx.AsyncClient
) -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(build_admin(replace(parts, store=None))),
        base_url="http://localhost/admin/v1",
        headers=admin.headers,
    ) as client:
        assert (await client.get("/status")).status_code == 200
        answer = await client.get("/catalog")
    assert answer.status_code == 501
    assert "set store.url" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'"x"', 400), (b"\xff", 400), (b"[" * 100_000, 400)],
)
async def test_a_body_that_is_no_request_is_refused(
    admin: httpx.AsyncClient, body: bytes, status: int
) -> None:
    json = {"content-type": "application/json"}
    assert (await admin.post("/catalog", content=body, headers=json)).status_code == status


async def test_bodies_have_a_limit_and_a_type(admin: httpx.AsyncClient) -> None:
    json = {"content-type": "application/json"}
    large = b" " * (4 * 1024 * 1024 + 1)
    assert (await admin.post("/catalog", content=large, headers=json)).status_code == 413
    assert (await admin.post("/catalog", content=b"models: []")).status_code == 415
