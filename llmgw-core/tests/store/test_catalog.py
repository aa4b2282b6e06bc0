"""The catalog keeps its owners apart and its history whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName
from llmgw.errors import ConfigError, NotLeader, RequestError
from llmgw.store import Store
from llmgw.store.database import connect, parse_url
from llmgw.store.schema import catalog


def model(name: str, *aliases: str, routing: str | None = None) -> Model:
    return Model(name=ModelName(name), aliases=tuple(map(ModelName, aliases)), routing=routing)


def names(store: Store) -> list[str]:
    return [entry.model.name for entry in store.catalog.entries()]


def test_an_entry_reads_back_as_it_was_put(store: Store) -> None:
    entry = Model.model_validate(
        {
            "name": "org/name:tag",
            "aliases": ["a"],
            "replicas": {"min": 0, "max": 3},
            "idle_after": "15m",
            "profiles": [
                {
                    "name": "p",
                    "engine": "vllm",
                    "weights": "hf:org/name@main",
                    "devices": {"count": 2, "memory_gib": 40.5},
                    "parallel": {"tensor": 2},
                    "options": {"nested": {"list": [1, None, "é"]}},
                }
            ],
        }
    )
    store.catalog.apply([entry], who="ada")
    (kept,) = store.catalog.entries()
    assert kept.model == entry
    assert (kept.owner, kept.version) == ("api", store.catalog.version())


def test_what_did_not_change_is_no_change(store: Store) -> None:
    store.catalog.apply([model("a")], who="ada")
    before = store.catalog.version()
    assert store.catalog.apply([model("a")], who="bob") == ()
    assert store.catalog.version() == before


def test_history_says_who_changed_what_newest_first(store: Store) -> None:
    store.catalog.apply([model("a"), model("b")], who="ada")
    store.catalog.apply([], remove=[ModelName("a")], who="bob")
    changes = store.catalog.history()
    assert [(item.name, item.who, item.model is None) for item in changes] == [
        ("a", "bob", True),
        ("b", "ada", False),
        ("a", "ada", False),
    ]
    assert store.catalog.history(ModelName("b")) == changes[1:2]
    assert store.catalog.history(before=changes[0].version, limit=1) == changes[1:2]


def test_a_change_against_an_older_version_is_refused_whole(store: Store) -> None:
    store.catalog.apply([model("a")], who="ada")
    seen = store.catalog.version()
    store.catalog.apply([model("b")], who="bob")
    with pytest.raises(RequestError, match="somebody changed it") as caught:
        store.catalog.apply([model("c")], who="ada", expected_version=seen)
    assert (caught.value.status, caught.value.code) == (412, "version_conflict")
    assert names(store) == ["a", "b"]


@pytest.mark.parametrize("taken", ["a", "alias"])
def test_a_name_or_alias_of_another_entry_is_refused(store: Store, taken: str) -> None:
    store.catalog.apply([model("a", "alias")], who="ada")
    with pytest.raises(RequestError, match=f"{taken!r} is already taken by the model 'a'"):
        store.catalog.apply([model("new"), model("b", taken)], who="ada")
    assert names(store) == ["a"]


def test_a_files_entry_is_changed_in_the_file_only(store: Store) -> None:
    store.catalog.replace_owned("file:chat.yaml", [model("a")], who="llmgw")
    with pytest.raises(RequestError, match=r"kept in the file chat\.yaml"):
        store.catalog.apply([model("a", routing="prefix")], who="ada")
    with pytest.raises(RequestError, match=r"kept in the file chat\.yaml"):
        store.catalog.apply([], remove=[ModelName("a")], who="ada")


def test_a_file_that_is_read_again_replaces_what_it_owned(store: Store) -> None:
    store.catalog.apply([model("mine")], who="ada")
    store.catalog.replace_owned("file:x", [model("a"), model("b")], who="llmgw")
    store.catalog.replace_owned("file:x", [model("b"), model("c", "a")], who="llmgw")
    assert names(store) == ["b", "c", "mine"]


def test_rollback_restores_the_apis_entries_and_is_itself_a_change(store: Store) -> None:
    store.catalog.replace_owned("file:x", [model("file")], who="llmgw")
    store.catalog.apply([model("a"), model("b")], who="ada")
    good = store.catalog.version()
    store.catalog.apply(
        [model("a", routing="prefix"), model("c")], remove=[ModelName("b")], who="b"
    )
    store.catalog.replace_owned("file:x", [model("file2")], who="llmgw")
    store.catalog.rollback(good, who="ada")
    models = sorted((entry.model for entry in store.catalog.entries()), key=lambda it: it.name)
    assert models == [model("a"), model("b"), model("file2")]
    assert store.catalog.version() > good


def test_rollback_to_a_version_that_never_was_is_refused(store: Store) -> None:
    with pytest.raises(RequestError, match="no catalog version 7"):
        store.catalog.rollback(7, who="ada")


def test_removing_what_is_not_there_says_so(store: Store) -> None:
    with pytest.raises(RequestError, match="no model 'ghost'"):
        store.catalog.apply([], remove=[ModelName("ghost")], who="ada")


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_server_that_does_not_lead_changes_nothing_and_names_the_leader(
    store: Store, open_: Callable[..., Store]
) -> None:
    follower = open_()
    with pytest.raises(NotLeader, match="here does"):
        follower.catalog.apply([model("a")], who="ada")
    assert names(follower) == []


def test_an_entry_of_a_newer_server_is_named_with_what_is_not_known_of_it(
    store: Store, store_url: str
) -> None:
    store.catalog.apply([model("a")], who="ada")
    put_in_by_a_newer_server(store_url)
    with pytest.raises(ConfigError, match="cannot read; upgrade it") as refused:
        store.catalog.entries()
    assert [problem.path for problem in refused.value.problems] == ["a.colour"]


def put_in_by_a_newer_server(store_url: str) -> None:
    engine = connect(parse_url(store_url))
    with engine.begin() as connection:
        text = '{"name": "a", "colour": "red"}'
        connection.execute(catalog.update().values(entry_json=text))
    engine.dispose()
