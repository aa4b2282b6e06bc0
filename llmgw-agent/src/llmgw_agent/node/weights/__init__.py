"""Model files on this node: where they come from, the cache that holds them, what may go."""

from __future__ import annotations

from llmgw.contracts.weights import WeightSource
from llmgw_agent.node.weights.hub import HubSource
from llmgw_agent.node.weights.index import IndexSource
from llmgw_agent.node.weights.local import LocalSource
from llmgw_agent.node.weights.web import WebSource


def sources() -> tuple[WeightSource, ...]:
    """Return the sources that come with the agent, for `llmgw_weight_sources`."""
    return (LocalSource(), IndexSource(), WebSource(), HubSource())
