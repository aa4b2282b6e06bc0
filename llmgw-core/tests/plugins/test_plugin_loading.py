"""What happens to plugins of every kind of quality."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace

import pytest

from llmgw import hookimpl
from llmgw.config.section import Section
from llmgw.contracts.placement import Candidate, PlacementRequest, Score, Verdict
from llmgw.errors import ConfigError, PluginConflictError, Problem
from llmgw.plugins import FoundPlugin, load_plugins, load_registry


class First:
    """A placement policy that prefers the first candidate."""

    def __init__(self, name: str = "first") -> None:
        self.name = name

    def rank(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> Sequence[Verdict]:
        return [Score(-index, "order") for index, _ in enumerate(candidates)]


def found(load: Callable[[], object], distribution: str = "acme-plugin") -> FoundPlugin:
    return FoundPlugin(distribution=distribution, version="1.0", entry="acme", load=load)


def supplying(hook: str, answer: object, distribution: str = "acme-plugin") -> FoundPlugin:
    """A plugin whose only hook gives this answer."""

    def implementation() -> object:
        return answer

    implementation.__name__ = hook
    return found(lambda: SimpleNamespace(**{hook: hookimpl(implementation)}), distribution)


def reason_of(plugin: FoundPlugin) -> str:
    loaded, failures = load_plugins([plugin])
    assert loaded == ()
    (failure,) = failures
    assert (failure.distribution, failure.entry) == (plugin.distribution, plugin.entry)
    return failure.reason


def test_what_a_plugin_hands_over_is_found_by_name() -> None:
    policy = First()
    registry = load_registry([supplying("llmgw_placement_policies", [policy])])
    assert registry.policies == {"first": policy}
    assert registry.failures == ()


def test_a_plugin_that_cannot_be_imported_is_named_and_the_next_one_still_loads() -> None:
    def broken() -> object:
        raise ImportError("libcuda.so.1: cannot open shared object file")

    registry = load_registry(
        [found(broken, "broken"), supplying("llmgw_placement_policies", [First()], "works")]
    )
    assert list(registry.policies) == ["first"]
    (failure,) = registry.failures
    assert failure.distribution == "broken"
    assert failure.reason == "ImportError: libcuda.so.1: cannot open shared object file"


def test_a_plugin_that_ends_the_process_while_imported_is_only_skipped() -> None:
    def leaves() -> object:
        raise SystemExit(3)

    assert "tried to end the process" in reason_of(found(leaves))


def test_a_plugin_without_hooks_is_told_which_there_are() -> None:
    assert "llmgw_engine_adapters" in reason_of(found(lambda: SimpleNamespace()))


@pytest.mark.parametrize("marked", [True, False])
def test_a_misspelt_hook_is_reported_with_the_nearest_name(marked: bool) -> None:
    def llmgw_engine_adaptors() -> list[object]:
        return []

    hook = hookimpl(llmgw_engine_adaptors) if marked else llmgw_engine_adaptors
    reason = reason_of(found(lambda: SimpleNamespace(llmgw_engine_adaptors=hook)))
    assert reason == "unknown hook llmgw_engine_adaptors; did you mean llmgw_engine_adapters?"


def test_a_hook_without_its_marker_is_reported() -> None:
    def llmgw_engine_adapters() -> list[object]:
        return []

    plugin = found(lambda: SimpleNamespace(llmgw_engine_adapters=llmgw_engine_adapters))
    assert "@hookimpl" in reason_of(plugin)


def test_a_hook_with_an_argument_that_is_not_in_its_specification_is_reported() -> None:
    @hookimpl
    def llmgw_engine_adapters(speed: int) -> list[object]:
        return []

    plugin = found(lambda: SimpleNamespace(llmgw_engine_adapters=llmgw_engine_adapters))
    assert "speed" in reason_of(plugin)


def test_a_hook_that_raises_is_named_with_what_it_raised() -> None:
    @hookimpl
    def llmgw_placement_policies() -> list[object]:
        raise KeyError("rack")

    plugin = found(lambda: SimpleNamespace(llmgw_placement_policies=llmgw_placement_policies))
    assert reason_of(plugin) == "llmgw_placement_policies: KeyError: 'rack'"


def test_an_async_hook_is_reported_and_not_left_unawaited() -> None:
    @hookimpl
    async def llmgw_placement_policies() -> list[object]:
        return []

    plugin = found(lambda: SimpleNamespace(llmgw_placement_policies=llmgw_placement_policies))
    assert "is async" in reason_of(plugin)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "returned builtins.NoneType"),
        ("first", "returned builtins.str"),
        ({"first": First()}, "returned builtins.dict"),
        ([First], "the class First itself"),
        ([object()], "builtins.object is no PlacementPolicy: lacks name, rank"),
        ([SimpleNamespace(name="x", rank=3)], "lacks rank"),
        ([First("")], "name must be a text, is ''"),
        ([First(), First()], "hands over name 'first' twice"),
    ],
)
def test_an_answer_of_the_wrong_shape_says_what_is_wrong(answer: object, said: str) -> None:
    assert said in reason_of(supplying("llmgw_placement_policies", answer))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "returned builtins.list"),
        ({"con-sul": Section}, "must be identifiers, got 'con-sul'"),
        ({"consul": dict}, "must be a subclass of Section"),
        ({"consul": Section()}, "must be a subclass of Section"),
    ],
)
def test_settings_sections_are_checked_too(answer: object, said: str) -> None:
    assert said in reason_of(supplying("llmgw_settings_sections", answer))


def test_a_plugin_is_used_as_a_whole_or_not_at_all() -> None:
    @hookimpl
    def llmgw_balancers() -> list[object]:
        raise RuntimeError("no")

    @hookimpl
    def llmgw_placement_policies() -> list[object]:
        return [First()]

    half = SimpleNamespace(
        llmgw_balancers=llmgw_balancers, llmgw_placement_policies=llmgw_placement_policies
    )
    assert load_registry([found(lambda: half)]).policies == {}


def test_one_name_from_two_packages_ends_the_start_naming_both() -> None:
    plugins = [
        supplying("llmgw_placement_policies", [First()], "one-pack"),
        supplying("llmgw_placement_policies", [First()], "other-pack"),
    ]
    with pytest.raises(PluginConflictError, match=r"'first'.*one-pack and other-pack"):
        load_registry(plugins)


def test_plugins_are_asked_in_the_order_of_their_distributions() -> None:
    plugins = [
        supplying("llmgw_placement_policies", [First("b")], "Beta_pack"),
        supplying("llmgw_placement_policies", [First("a")], "alpha.pack"),
    ]
    for order in (plugins, plugins[::-1]):
        registry = load_registry(order)
        assert list(registry.policies) == ["a", "b"]


def test_the_registry_cannot_be_changed() -> None:
    registry = load_registry([supplying("llmgw_placement_policies", [First()])])
    with pytest.raises(TypeError):
        registry.policies["mine"] = First()  # type: ignore[index] # the point of the test


class Quiet:
    """A sink that keeps what it got."""

    name = "quiet"

    async def publish(self, endpoints: Iterable[object], models: Iterable[object]) -> None: ...


def sink_plugin(make: Callable[[Mapping[str, object]], list[object]]) -> FoundPlugin:
    @hookimpl
    def llmgw_sinks(settings: Mapping[str, object]) -> list[object]:
        return make(settings)

    return found(lambda: SimpleNamespace(llmgw_sinks=llmgw_sinks))


def test_hooks_that_need_settings_are_called_when_there_are_settings() -> None:
    asked: list[Mapping[str, object]] = []

    def make(settings: Mapping[str, object]) -> list[object]:
        asked.append(settings)
        return [Quiet()]

    registry = load_registry([sink_plugin(make)])
    assert asked == []
    assert list(registry.sinks({"consul": 1}).objects) == ["quiet"]
    assert asked == [{"consul": 1}]


def test_a_hook_that_fails_with_the_settings_is_skipped_and_named() -> None:
    def make(settings: Mapping[str, object]) -> list[object]:
        raise OSError("no route to host")

    supplied = load_registry([sink_plugin(make)]).sinks({})
    assert supplied.objects == {}
    assert supplied.failures[0].reason == "OSError: no route to host"


def test_a_setting_that_a_plugin_refuses_ends_the_start() -> None:
    def make(settings: Mapping[str, object]) -> list[object]:
        raise ConfigError("plugins.consul", [Problem(path="url", message="must be set")])

    with pytest.raises(ConfigError, match="must be set"):
        load_registry([sink_plugin(make)]).sinks({})


def test_required_plugins_that_failed_or_are_missing_end_the_start() -> None:
    def broken() -> object:
        raise ImportError("no")

    registry = load_registry([found(broken, "broken")])
    registry.require([])
    with pytest.raises(ConfigError, match=r"broken.*failed: ImportError: no"):
        registry.require(["broken"])
    with pytest.raises(ConfigError, match="pip install absent"):
        registry.require(["absent"])
    with pytest.raises(ConfigError, match="broken"):
        registry.require(["*"])
