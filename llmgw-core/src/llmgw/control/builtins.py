"""What the core itself supplies through the hooks that it offers to others."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw import hookimpl
from llmgw.contracts.placement import PlacementPolicy
from llmgw.control.decide.policies.fabric import Fabric
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.policies.spread import Spread


@hookimpl
def llmgw_placement_policies() -> Iterable[PlacementPolicy]:
    """Fill nodes up (the default), keep replicas apart, or respect the wiring."""
    return [Pack(), Spread(), Fabric()]
