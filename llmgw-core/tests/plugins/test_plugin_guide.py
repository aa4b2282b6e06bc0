"""The plugins that the guide shows load and do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from llmgw.contracts.placement import Candidate, NodeOffer, PlacementRequest, Score, Veto
from llmgw.domain.catalog import Model
from llmgw.domain.ids import NodeId
from llmgw.plugins import FoundPlugin, load_registry

GUIDE = Path(__file__).parents[3] / "docs" / "plugins.md"


def plugin_of(code: str) -> FoundPlugin:
    """Load a code block as the module that it would be."""
    names: dict[str, Any] = {"__name__": "acme"}
    exec(compile(code, "docs/plugins.md", "exec"), names)  # noqa: S102 # our own guide
    return FoundPlugin(
        distribution="acme", version="1", entry="acme", load=lambda: SimpleNamespace(**names)
    )


def test_every_plugin_in_the_guide_loads() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        assert load_registry([plugin_of(block)]).failures == ()


def test_the_worked_placement_policy_prefers_the_coolest_node_and_says_why_not() -> None:
    first = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    policy = load_registry([plugin_of(first)]).policies["coolest-rack"]
    model = Model.model_validate(
        {"name": "m", "profiles": [{"engine": "fake", "weights": "path:/w"}]}
    )
    request = PlacementRequest(model=model, profile=model.profiles[0])
    cool, warm, unknown = policy.rank(
        request, [offer({"inlet_celsius": "18"}), offer({"inlet_celsius": "27"}), offer({})]
    )
    assert isinstance(cool, Score)
    assert isinstance(warm, Score)
    assert cool.value > warm.value
    assert unknown == Veto("no_inlet_label", "a node has no label inlet_celsius")


def offer(labels: dict[str, str]) -> Candidate:
    return Candidate(
        offers=(
            NodeOffer(
                node=NodeId("n"),
                devices=(),
                free_devices=1,
                total_devices=1,
                free_memory_mib=None,
                free_ram_mib=None,
                same_model=0,
                replicas=0,
                has_weights=True,
                has_engine=True,
                islands=frozenset(),
                labels=labels,
            ),
        )
    )
