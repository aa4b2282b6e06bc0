"""Which nodes another one may fetch weights from."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import defaultdict
from collections.abc import Iterable

from llmgw.domain.nodes import NodeInventory
from llmgw_agent.wire.frames import WeightsOffer, WeightsPeer

MOST_PEERS = 4
"""More would not be quicker: the asker's own link is full."""


def choose_peers(
    ref: str, asker: NodeInventory, others: Iterable[NodeInventory]
) -> WeightsOffer | None:
    """Return who has the weights whole and gives them away; None if nobody does.

    others: of nodes with a live session that may be asked. Where nodes have different files
    under one ref (a branch that has moved on), those that most nodes have are chosen. The
    nearest come first; among equals each asker has an order of its own, which spreads the load.
    """
    having: defaultdict[str, list[NodeInventory]] = defaultdict(list)
    for node in others:
        if node.node == asker.node or node.leaving or not _is_reached(node, asker):
            continue
        for weights in node.weights:
            if weights.ref == ref and weights.manifest is not None:
                having[weights.manifest].append(node)
    if not having:
        return None
    manifest = max(having, key=lambda digest: (len(having[digest]), digest))
    peers = sorted(having[manifest], key=lambda node: (-_nearness(asker, node), _draw(asker, node)))
    return WeightsOffer(
        manifest=manifest,
        peers=tuple(
            WeightsPeer(node=node.node, address=node.data_address, port=node.weights_port)
            for node in peers[:MOST_PEERS]
            if node.weights_port is not None
        ),
    )


def _is_reached(node: NodeInventory, asker: NodeInventory) -> bool:
    """Whether it has a door, and not one that leads back to the asker's own machine."""
    if node.weights_port is None:
        return False
    try:
        is_inside = ipaddress.ip_address(node.data_address).is_loopback
    except ValueError:
        return False  # what a node says of itself may be anything
    return not is_inside or node.machine_id == asker.machine_id


def _nearness(one: NodeInventory, other: NodeInventory) -> int:
    """Return how many fabric labels and pools they share; their addresses are no label."""
    shared = sum(
        other.fabric.get(name) == value
        for name, value in one.fabric.items()
        if not name.endswith(".address")
    )
    return shared + (one.pool == other.pool)


def _draw(asker: NodeInventory, node: NodeInventory) -> str:
    return hashlib.sha256(f"{asker.node}/{node.node}".encode()).hexdigest()
