"""What each shard of a placed replica is told."""

from __future__ import annotations

from llmgw.contracts.placement import Candidate
from llmgw.control.decide.accounts import Accounts
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
    if need.shards > 1:
        fabric = _common_fabric(accounts, candidate, need)
        peers = tuple(
            Peer(
                rank=rank,
                node=offer.node,
                address=_address(accounts.nodes[offer.node].inventory, fabric),
                ports=ports[offer.node],
                devices=len(offer.devices),
            )
            for rank, offer in enumerate(candidate.offers)
        )
    specs: list[tuple[NodeId, ShardSpec]] = []
    for rank, offer in enumerate(candidate.offers):
        kinds = {item.id: item.kind for item in accounts.nodes[offer.node].inventory.devices}
        demand = need.demand_on(kinds[offer.devices[0]]) if offer.devices else None
        memory_mib = int(demand.memory_mib) if demand else None
        if not offer.devices and profile.ram_gib is not None:
            memory_mib = int(profile.ram_gib * 1024)
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
        )
        specs.append((offer.node, spec))
    return tuple(specs)


def _common_fabric(accounts: Accounts, candidate: Candidate, need: Need) -> str | None:
    if need.node_fabric is not None:
        return need.node_fabric
    first, *others = (accounts.nodes[offer.node].inventory.fabric for offer in candidate.offers)
    shared = (
        key
        for key, value in sorted(first.items())
        if not key.endswith(".address") and all(other.get(key) == value for other in others)
    )
    return next(shared, None)


def _address(inventory: NodeInventory, fabric: str | None) -> str:
    """Return where peers reach the node: on the fabric (`<fabric>.address`), if it says so."""
    return inventory.fabric.get(f"{fabric}.address", inventory.data_address)
