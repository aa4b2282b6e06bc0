"""Every hook is documented in one way, has its section in the guide and a contract test."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmgw import hookimpl, hookspecs
from llmgw.plugins import FoundPlugin, load_plugins
from llmgw.plugins.loading import HOOKS, KINDS, LATE_HOOKS

HEADINGS = ("Called:", "Process:", "Arguments:", "Returns:", "Errors:", "Example::")
GUIDE = Path(__file__).parents[3] / "docs" / "plugins.md"


@pytest.mark.parametrize("hook", HOOKS)
def test_the_docstring_has_the_six_headings_in_order(hook: str) -> None:
    doc = inspect.getdoc(getattr(hookspecs, hook)) or ""
    at = [doc.find(f"\n{heading}") for heading in HEADINGS]
    assert -1 not in at
    assert at == sorted(at)
    assert re.match(r"[A-Z][^\n]+\.\n\n", doc), "the first line says what a plugin hands over"


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_in_the_docstring_is_python_that_implements_the_hook(hook: str) -> None:
    doc = inspect.getdoc(getattr(hookspecs, hook)) or ""
    example = inspect.cleandoc(doc.split("Example::", 1)[1])
    compile(example, hook, "exec")
    assert f"def {hook}(" in example
    assert "@hookimpl" in example


@pytest.mark.parametrize("hook", HOOKS)
def test_the_guide_for_plugin_authors_has_a_section(hook: str) -> None:
    assert re.search(rf"^### `{hook}`$", GUIDE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("hook", HOOKS)
def test_no_hook_is_async(hook: str) -> None:
    assert not inspect.iscoroutinefunction(getattr(hookspecs, hook))


@pytest.mark.parametrize("hook", HOOKS)
def test_an_empty_answer_is_accepted_and_one_that_keeps_no_contract_is_refused(hook: str) -> None:
    """The contract test of each hook: the loader itself enforces what the specification says."""
    sections = hook == "llmgw_settings_sections"
    for answer, accepted in (({} if sections else [], True), (object(), False)):
        loaded, failures = load_plugins([_plugin(hook, answer)])
        if hook in LATE_HOOKS:
            arguments = dict.fromkeys(inspect.signature(getattr(hookspecs, hook)).parameters)
            if accepted:
                assert loaded[0].ask(hook, **arguments) == {}
            else:
                with pytest.raises(TypeError, match="must return"):
                    loaded[0].ask(hook, **arguments)
        elif accepted:
            assert not failures
        else:
            assert failures[0].reason.startswith(f"{hook}: must return")


@pytest.mark.parametrize("hook", sorted(KINDS))
def test_an_object_that_does_not_keep_the_protocol_is_refused_by_name(hook: str) -> None:
    protocol, key = KINDS[hook]
    loaded, failures = load_plugins([_plugin(hook, [SimpleNamespace()])])
    if hook in LATE_HOOKS:
        arguments = dict.fromkeys(inspect.signature(getattr(hookspecs, hook)).parameters)
        with pytest.raises(TypeError, match=f"is no {protocol.__name__}: lacks .*{key}"):
            loaded[0].ask(hook, **arguments)
    else:
        assert re.search(f"is no {protocol.__name__}: lacks .*{key}", failures[0].reason)


def test_each_hook_either_names_its_objects_or_hands_over_sections() -> None:
    assert set(HOOKS) == {*KINDS, "llmgw_settings_sections"}


def _plugin(hook: str, answer: object) -> FoundPlugin:
    # pluggy passes an implementation the arguments that it names; the late hooks' are optional.
    def implementation() -> object:
        return answer

    implementation.__name__ = hook
    module = SimpleNamespace(**{hook: hookimpl(implementation)})
    return FoundPlugin(distribution="acme", version="1", entry="acme", load=lambda: module)


def test_late_hooks_get_what_their_specification_names() -> None:
    got: list[Mapping[str, object]] = []

    @hookimpl
    def llmgw_lease_stores(settings: Mapping[str, object]) -> list[object]:
        got.append(settings)
        return []

    module = SimpleNamespace(llmgw_lease_stores=llmgw_lease_stores)
    loaded, _ = load_plugins(
        [FoundPlugin(distribution="acme", version="1", entry="acme", load=lambda: module)]
    )
    loaded[0].ask("llmgw_lease_stores", settings={"etcd": 1})
    assert got == [{"etcd": 1}]
