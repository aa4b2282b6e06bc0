"""Names and where they lead."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, Epoch, ModelName, ReplicaId
from llmgw.domain.roles import Role
from llmgw.router.table import Table, TableMaker


def endpoint(
    id_: str, *models: str, replica: bool = False, priority: int = 0, draining: bool = False
) -> Endpoint:
    return Endpoint(
        id=EndpointId(id_),
        url=f"http://127.0.0.1/{id_}",
        models=tuple(ModelName(name) for name in models),
        replica=ReplicaId(id_) if replica else None,
        priority=priority,
        draining=draining,
    )


def entry(*names: str, state: ModelState = ModelState.SERVING) -> ModelStatus:
    return ModelStatus(names=tuple(ModelName(name) for name in names), state=state)


def leads(table: Table, name: str) -> list[str] | None:
    route = table.find(name)
    return None if route is None else [item.id for item in route.endpoints]


def test_aliases_and_the_canonical_name_lead_to_the_same_endpoints() -> None:
    table = Table.build(
        [endpoint("a", "llama", "default", replica=True)], [entry("llama", "default")], Epoch(3)
    )
    assert leads(table, "llama") == leads(table, "default") == ["a"]
    route = table.find("default")
    assert route is not None
    assert route.name == "llama"
    assert table.epoch == 3


def test_an_adapter_leads_to_the_endpoints_that_have_it_under_a_name_of_its_own() -> None:
    loaded = replace(endpoint("a", "llama", replica=True), adapters={ModelName("sql"): "sql"})
    table = Table.build(
        [loaded, endpoint("b", "llama", replica=True)], [entry("llama"), entry("sql")], Epoch(0)
    )
    assert leads(table, "llama") == ["a", "b"]
    assert leads(table, "sql") == ["a"]
    route = table.find("sql")
    assert route is not None
    assert route.name == "sql", "a key for the model does not open its adapters"


def test_a_name_must_match_exactly() -> None:
    table = Table.build([endpoint("a", "llama")], [], Epoch(0))
    for name in ("Llama", "llama ", " llama", "llama/", "", "lla"):
        assert table.find(name) is None


def test_an_endpoint_of_a_model_unknown_to_the_catalog_forms_a_route() -> None:
    table = Table.build([endpoint("a", "m", "n"), endpoint("b", "m", "n")], [], Epoch(0))
    assert leads(table, "n") == ["a", "b"]
    assert [route.names for route in table.routes] == [("m", "n")]


def test_static_endpoints_get_only_names_that_they_answer_to() -> None:
    table = Table.build([endpoint("a", "m", "x"), endpoint("b", "n", "x")], [], Epoch(0))
    assert leads(table, "m") == ["a"]
    assert leads(table, "n") == ["b"]
    assert leads(table, "x") == ["a", "b"]
    assert len(table.routes) == 3


def test_a_static_endpoint_joins_a_model_of_the_catalog_by_any_of_its_names() -> None:
    table = Table.build(
        [endpoint("fleet", "llama", replica=True), endpoint("static", "own", "default")],
        [entry("llama", "default")],
        Epoch(0),
    )
    assert leads(table, "llama") == ["fleet", "static"]
    assert leads(table, "own") == ["static"]


def test_a_replica_does_not_serve_a_model_that_its_alias_has_moved_to() -> None:
    table = Table.build(
        [endpoint("old", "llama-2", "default", replica=True)],
        [entry("llama-2"), entry("llama-3", "default")],
        Epoch(0),
    )
    assert leads(table, "default") == []
    assert leads(table, "llama-2") == ["old"]


def test_a_canonical_name_beats_an_alias_and_the_first_of_two_aliases_wins() -> None:
    table = Table.build([], [entry("b", "x", "a"), entry("a", "x")], Epoch(0))
    owner = {name: route.name for route in table.routes for name in route.names}
    assert owner == {"a": "a", "b": "b", "x": "a"}


def test_a_withdrawn_model_has_no_route_though_its_endpoints_still_drain() -> None:
    table = Table.build([endpoint("a", "m", replica=True, draining=True)], [], Epoch(0))
    assert table.find("m") is None


def test_a_sleeping_model_has_a_route_without_endpoints() -> None:
    table = Table.build([], [entry("m", state=ModelState.ASLEEP)], Epoch(0))
    route = table.find("m")
    assert route is not None
    assert (route.endpoints, route.state) == ((), ModelState.ASLEEP)


def test_endpoints_are_in_order_of_priority_then_id() -> None:
    table = Table.build(
        [endpoint("b", "m"), endpoint("c", "m", priority=5), endpoint("a", "m")], [], Epoch(0)
    )
    assert leads(table, "m") == ["c", "a", "b"]


def test_a_listing_shows_only_what_a_key_may_use() -> None:
    table = Table.build([endpoint("a", "m"), endpoint("b", "n")], [], Epoch(0))
    assert [route.name for route in table.visible(lambda route: route.name != "m")] == ["n"]


NAMES = st.sampled_from(["a", "b", "c", "d"])
NAME_LISTS = st.lists(NAMES, min_size=1, max_size=3, unique=True)


@given(
    st.lists(st.tuples(NAME_LISTS, st.booleans(), st.booleans()), max_size=5),
    st.lists(NAME_LISTS, max_size=3),
)
def test_the_table_does_not_depend_on_the_order_of_what_it_is_made_of(
    drawn: list[tuple[list[str], bool, bool]], catalog: list[list[str]]
) -> None:
    endpoints = [
        endpoint(f"e{number}", *names, replica=replica, draining=draining)
        for number, (names, replica, draining) in enumerate(drawn)
    ]
    entries = [entry(*names) for names in catalog]
    table = Table.build(endpoints, entries, Epoch(0))
    assert table == Table.build(reversed(endpoints), reversed(entries), Epoch(0))
    for name in "abcd":
        route = table.find(name)
        if route is not None:
            assert name in route.names
            assert all(set(item.models) & set(route.names) for item in route.endpoints), (
                "an endpoint got a name that it did not claim"
            )


ADAPTERS = st.sampled_from([{}, {}, {}, {ModelName("a"): "a"}, {ModelName("d"): "d"}])
ENDPOINTS = st.builds(
    lambda number, names, role, adapters, **drawn: replace(
        endpoint(f"e{number}", *names, **drawn), role=role, adapters=adapters
    ),
    number=st.integers(0, 4),
    names=NAME_LISTS,
    role=st.sampled_from([None, None, Role.PREFILL, Role.DECODE]),
    adapters=ADAPTERS,
    replica=st.booleans(),
    priority=st.integers(0, 1),
    draining=st.booleans(),
)
ENTRIES = st.builds(
    lambda names, state: entry(*names, state=state),
    names=NAME_LISTS,
    state=st.sampled_from(ModelState),
)


@given(
    st.lists(
        st.one_of(
            ENDPOINTS,  # one comes or changes
            st.integers(0, 4),  # one goes
            st.lists(ENTRIES, max_size=3),  # another catalog
        ),
        max_size=12,
    )
)
def test_a_table_made_after_others_is_the_one_made_from_nothing(
    steps: list[Endpoint | int | list[ModelStatus]],
) -> None:
    maker, endpoints, catalog = TableMaker(), dict[str, Endpoint](), list[ModelStatus]()
    for step in steps:
        if isinstance(step, Endpoint):
            endpoints[step.id] = step
        elif isinstance(step, int):
            endpoints.pop(f"e{step}", None)
        else:
            catalog = step
        made = maker.make(endpoints.values(), catalog, Epoch(0))
        assert made == Table.build(endpoints.values(), catalog, Epoch(0))
        assert made.by_name == {name: route for route in made.routes for name in route.names}


def test_a_change_makes_only_the_routes_anew_that_it_is_about() -> None:
    maker = TableMaker()
    catalog = [entry("m"), entry("n"), entry("sql")]
    kept = [endpoint("a", "m", replica=True), endpoint("c", "static")]
    before = maker.make([*kept, endpoint("b", "n", replica=True)], catalog, Epoch(0))
    having = replace(endpoint("b", "n", replica=True), adapters={ModelName("sql"): "sql"})
    # A table from a feed says the same with other values.
    read = [replace(item) for item in kept]
    after = maker.make([*read, having], [replace(item) for item in catalog], Epoch(0))
    assert {name for name in after.by_name if after.find(name) is not before.find(name)} == {
        "n",
        "sql",
    }
    assert leads(after, "sql") == ["b"]


def test_prefill_endpoints_are_a_route_of_their_own() -> None:
    halves = [
        replace(endpoint("p", "m", replica=True), role=Role.PREFILL),
        replace(endpoint("d", "m", replica=True), role=Role.DECODE),
        endpoint("w", "m", replica=True),
    ]
    table = Table.build(halves, [entry("m", "alias")], Epoch(1))
    route = table.find("alias")
    assert route is not None
    assert route.prefill is not None
    assert [item.id for item in route.endpoints] == ["d", "w"]
    assert [item.id for item in route.prefill.endpoints] == ["p"]
    assert [half.name for half in route.halves] == ["m", "m (prefill)"]
    # Nobody can ask for it by name.
    assert [item.name for item in table.routes] == ["m"]
    assert table.find("m (prefill)") is None


def test_decode_endpoints_alone_are_half_a_pair_too() -> None:
    alone = [replace(endpoint("d", "m", replica=True), role=Role.DECODE)]
    route = Table.build(alone, [entry("m")], Epoch(1)).find("m")
    assert route is not None
    assert route.prefill is not None
    assert route.prefill.endpoints == ()


def test_a_route_without_roles_has_no_halves() -> None:
    route = Table.build([endpoint("a", "m")], [], Epoch(1)).find("m")
    assert route is not None
    assert route.prefill is None
    assert route.halves == (route,)
