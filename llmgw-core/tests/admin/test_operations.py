"""The declared operations, the document made from them, and pages of lists."""

from __future__ import annotations

import httpx
import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.api import all_operations
from llmgw.admin.paging import PageQuery, page
from llmgw.store import Store

pytestmark = pytest.mark.anyio


def test_what_changes_something_is_declared_so_and_needs_more_than_looking() -> None:
    """Each of these answers with an audit event, or the request fails: see `app._endpoint`."""
    reads_by_post = {"/plan", "/feed/usage"}
    for operation in all_operations():
        changes = operation.method != "GET" and operation.path not in reads_by_post
        assert operation.changes == changes, operation.path
        if changes:
            assert operation.role is not None
            assert operation.role.value != "viewer", operation.path


def test_no_method_and_path_is_declared_twice() -> None:
    declared = [(item.method, item.path) for item in all_operations()]
    assert len(set(declared)) == len(declared)


async def test_the_document_lists_every_operation_and_its_schemas_are_valid(
    admin: httpx.AsyncClient,
) -> None:
    document = (await admin.get("/openapi.json")).json()
    listed = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert len(listed) == len(all_operations()) + 1
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert "/admin/v1/catalog/{name}" in document["paths"]


async def test_replies_are_what_the_document_says(admin: httpx.AsyncClient, store: Store) -> None:
    await admin.post("/catalog", json={"models": [{"name": "a"}]})
    await admin.post("/keys", json={"name": "ci", "models": ["a"]})
    document = (await admin.get("/openapi.json")).json()
    checked = 0
    for path, methods in document["paths"].items():
        endless = ("follow", "feed", "profile")
        if "get" not in methods or "{" in path or any(word in path for word in endless):
            continue
        answer = await admin.get(f"http://localhost{path}")
        described = methods["get"]["responses"].get(str(answer.status_code))
        assert described is not None, (path, answer.status_code)
        schema = described["content"].get("application/json", {}).get("schema")
        if schema is not None:
            Draft202012Validator({**schema, "components": document["components"]}).validate(
                answer.json()
            )
            checked += 1
    assert checked > 8


@pytest.mark.parametrize(
    ("path", "at"),
    [
        ("/keys?limit=0", "limit"),
        ("/keys?limit=x", "limit"),
        ("/keys?limt=5", "limt"),
        ("/keys?limit=1&limit=2", "limit"),
        ("/usage?by=colour", "by"),
        ("/status?verbose=1", "verbose"),
    ],
)
async def test_a_wrong_query_is_named(admin: httpx.AsyncClient, path: str, at: str) -> None:
    answer = await admin.get(path)
    assert answer.status_code == 400
    assert [problem["path"] for problem in answer.json()["error"]["problems"]] == [at]


async def test_a_wrong_body_is_told_in_the_words_of_configuration_files(
    admin: httpx.AsyncClient,
) -> None:
    profile = {"engine": "fake", "weights": "path:/w", "devices": {"count": -1}, "enginee": "x"}
    body = {"models": [{"name": "a", "profiles": [profile], "replicas": {"min": "two"}}]}
    answer = await admin.post("/catalog", json=body)
    assert answer.status_code == 400
    told = {item["path"]: item["message"] for item in answer.json()["error"]["problems"]}
    assert told == {
        "models[0].replicas.min": "must be a whole number, got 'two'",
        "models[0].profiles[0].devices.count": "must be at least 0, got -1",
        "models[0].profiles[0].enginee": "unknown key 'enginee'; did you mean 'engine'?",
    }
    broken = await admin.post(
        "/catalog", content=b'{"token": "planted', headers={"content-type": "application/json"}
    )
    assert broken.status_code == 400
    assert "planted" not in broken.text


def test_pages_together_are_the_list_in_order_and_once_each() -> None:
    items = [f"n{number:03}" for number in range(25, 0, -1)]
    seen: list[str] = []
    after = None
    while True:
        shown, after = page(items, str, PageQuery(limit=10, after=after))
        seen += shown
        if after is None:
            break
    assert seen == sorted(items)


async def test_an_unknown_path_or_method_is_told_in_the_same_shape(
    admin: httpx.AsyncClient,
) -> None:
    missing, wrong = await admin.get("/nothing"), await admin.put("/status")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_a_store_that_is_away_is_503_and_status_still_answers(
    admin: httpx.AsyncClient, store: Store
) -> None:
    await admin.get("/status")
    store.close()
    answer = await admin.get("/catalog")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert (await admin.get("/status")).status_code == 200


@pytest.mark.parametrize(
    ("version", "status"), [(0, 200), (0.0, 200), (False, 400), ("0", 400), (0.5, 400), (None, 400)]
)
async def test_bodies_are_read_as_json_schema_says(
    admin: httpx.AsyncClient, version: object, status: int
) -> None:
    assert (await admin.post("/rollback", json={"version": version})).status_code == status


async def test_a_405_names_every_method_that_the_path_knows(admin: httpx.AsyncClient) -> None:
    answer = await admin.request("OPTIONS", "/keys")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
