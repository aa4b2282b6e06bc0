"""The operators' timeline, and figures that were learned."""

from __future__ import annotations

from llmgw.store import Store


def test_events_are_read_newest_first_page_by_page(store: Store) -> None:
    made = [store.events.add("node_lost", f"node n{number}", "gone") for number in range(5)]
    first = store.events.list(limit=2)
    second = store.events.list(limit=2, before=first[-1].id)
    assert [event.subject for event in first + second] == [
        "node n4",
        "node n3",
        "node n2",
        "node n1",
    ]
    assert store.events.list(subject="node n0") == (made[0],)


def test_a_follower_misses_none_however_many_came(store: Store) -> None:
    made = [store.events.add("x", "s", str(number)) for number in range(5)]
    missed = store.events.list(after=made[0].id, limit=2)
    assert [event.message for event in missed] == ["2", "1"]


def test_before_and_after_read_back_as_values(store: Store) -> None:
    store.events.add(
        "key_changed", "key k", "limits", who="ada", before=None, after={"models": ["a"]}
    )
    (event,) = store.events.list()
    assert (event.who, event.before, event.after) == ("ada", None, {"models": ["a"]})


def test_learned_figures_are_replaced_by_key(store: Store) -> None:
    store.learned.put({"a": {"memory_mib": 1.5}, "b": {"wake_s": 3}})
    store.learned.put({"a": {"memory_mib": 2.5}})
    assert store.learned.all() == {"a": {"memory_mib": 2.5}, "b": {"wake_s": 3}}
