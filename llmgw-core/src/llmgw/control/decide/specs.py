"""What each shard of a placed replica is told."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.contracts.placement import Candidate
from llmgw.control.decide.accounts import Accounts
from llmgw.control.decide.adapters import wanted_adapters
from llmgw.control.decide.need import Need
from llmgw.domain.commands import Peer, ShardSpec
from llmgw.domain.ids import NodeId, ReplicaId, shard_id
from llmgw.domain.nodes import NodeInventory


def make_specs(
    accounts: Accounts, need: Need, candidate: Candidate, replica: ReplicaId
) -> tuple[tuple[NodeId, ShardSpec], ...]:
    """Return the shards by rank, with ports that are free on each node's machine."""
    profile = need.profile
    ports = {offer.node: accounts.free_ports(offer.node, need.ports) for offer in candidate.offers}
    peers: tuple[Peer, ...] = ()
    if need.shards > 1 or profile.role is not None:
        addresses = _addresses(accounts, candidate, need)
        peers = tuple(
            Peer(
                rank=rank,
                node=offer.node,
                address=address,
                ports=ports[offer.node],
                devices=len(offer.devices),
            )
            for rank, (offer, address) in enumerate(zip(candidate.offers, addresses, strict=True))
        )
    specs: list[tuple[NodeId, ShardSpec]] = []
    for rank, offer in enumerate(candidate.offers):
        kinds = {item.id: item.kind for item in accounts.nodes[offer.node].inventory.devices}
        demand = need.demand_on(kinds[offer.devices[0]]) if offer.devices else None
        memory_mib = int(demand.memory_mib) if demand else None
        if not offer.devices and need.ram_mib is not None:
            memory_mib = int(need.ram_mib)
        spec = ShardSpec(
            id=shard_id(replica, rank),
            replica=replica,
            model=need.model.name,
            served_names=need.model.names,
            profile=profile.name,
            spec_hash=need.hash,
            engine=profile.engine,
            engine_version=profile.version,
            weights=profile.weights,
            options=dict(profile.options),
            devices=offer.devices,
            rank=rank,
            ports=ports[offer.node],
            tensor=profile.parallel.tensor,
            pipeline=profile.parallel.pipeline,
            data=profile.parallel.data,
            peers=peers,
            memory_mib=memory_mib,
            command=profile.command,
            env=dict(profile.env),
            pool=profile.pool,
            priority=profile.priority,
            weight=profile.weight,
            max_inflight=profile.max_inflight,
            start_limit_s=profile.start_limit,
            stop_grace_s=profile.stop_grace,
            adapters=wanted_adapters(profile),
            role=profile.role,
        )
        specs.append((offer.node, spec))
    return tuple(specs)


def _addresses(accounts: Accounts, candidate: Candidate, need: Need) -> tuple[str, ...]:
    """Return where the nodes of a gang reach each other, by rank: all in the same network; and where
    a replica of one shard is reached by those of the other role.

    That is the fabric's (`<fabric>.address`), else that of `control.mgmt_interface`, else the one
    in which routers reach engines.
    """
    nodes = [accounts.nodes[offer.node].inventory for offer in candidate.offers]
    for network in (_common_fabric(nodes, need), accounts.snapshot.limits.mgmt_interface):
        found = [node.fabric.get(f"{network}.address") for node in nodes]
        if all(found):
            return tuple(address for address in found if address)
    return tuple(node.data_address for node in nodes)


def _common_fabric(nodes: Sequence[NodeInventory], need: Need) -> str | None:
    if need.node_fabric is not None or len(nodes) == 1:
        return need.node_fabric
    first, *others = nodes
    shared = (
        key
        for key, value in sorted(first.fabric.items())
        if not key.endswith(".address") and all(node.fabric.get(key) == value for node in others)
    )
    return next(shared, None)
