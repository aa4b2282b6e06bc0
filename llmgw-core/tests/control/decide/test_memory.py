"""What a planner keeps between two passes is what it would find afresh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from llmgw.control.decide.accounts import Accounts
from llmgw.control.decide.index import FleetIndex
from llmgw.control.decide.memory import Memory
from llmgw.control.decide.policies.pack import Pack
from llmgw.control.decide.reconcile import reconcile
from llmgw.control.decide.snapshot import ClusterSnapshot, NodeRecord, ReplicaRecord
from llmgw.domain.ids import Epoch, ModelName, NodeId, ProfileName, ReplicaId
from llmgw.domain.nodes import DeviceHealth
from llmgw.domain.replicas import Replica, ReplicaState
from llmgw.testing import values

MakeSnapshot = Callable[..., ClusterSnapshot]
STATES = (ReplicaState.READY, ReplicaState.SLEEPING, ReplicaState.STOPPED, ReplicaState.PENDING)


def replica(rng: Random, number: int, nodes: list[NodeRecord]) -> ReplicaRecord:
    """Return a replica somewhere, on devices that another may hold as well."""
    node = rng.choice(nodes)
    assert node.inventory is not None
    model = ModelName(rng.choice("mno"))
    devices = rng.sample([item.id for item in node.inventory.devices], rng.randint(0, 2))
    spec = values.shard(
        f"r{number}.0",
        model=model,
        devices=tuple(devices),
        ports=(20000 + number,),
        memory_mib=1024,
    )
    own = Replica(
        id=ReplicaId(f"r{number}"),
        model=model,
        profile=ProfileName("default"),
        spec_hash="0" * 16,
        epoch=Epoch(1),
        state=rng.choice(STATES),
    )
    return ReplicaRecord(replica=own, shards=((node.id, spec),))


def state_of(accounts: Accounts, index: FleetIndex) -> object:
    """Return everything that placement reads, but for what is empty."""
    nodes = {
        name: (
            set(account.free),
            {shape: count for shape, count in account.sound.items() if count},
            +account.models,
            account.replicas,
            account.ram_booked_mib,
            account.needed,
            account.arriving,
            account.record,
            accounts.free_ports(name, 3),
        )
        for name, account in accounts.nodes.items()
    }
    listed = (index.pools, index.labels, index.engines, index.models, index.crowds)
    free = {
        (shape, count): bits
        for shape, by_count in index._free.items()
        for count, bits in by_count.items()
        if count and bits
    }
    return (
        nodes,
        index.open,
        free,
        [{key: bits for key, bits in item.items() if bits} for item in listed],
    )


@pytest.mark.parametrize("seed", range(30))
def test_accounts_that_follow_a_fleet_are_those_of_a_fresh_look(
    seed: int, snapshot: MakeSnapshot, record: Callable[..., NodeRecord]
) -> None:
    rng = Random(seed)
    shared = tuple(values.device("host", index) for index in range(2))
    nodes = [record(values.inventory(name, devices=3)) for name in "abc"]
    nodes += [
        record(values.inventory(name, devices=shared, machine_id="host")) for name in ("x", "y")
    ]
    fleet, memory, number = snapshot(nodes=nodes), Memory(), 0
    for _ in range(25):
        nodes = list(fleet.nodes.values())
        match rng.choice(["add", "add", "end", "move", "cordon", "fail", "ports", "leave", "book"]):
            case "add":
                number += 1
                fleet = replace(fleet, replicas=(*fleet.replicas, replica(rng, number, nodes)))
            case "end" if fleet.replicas:
                fleet = replace(fleet, replicas=fleet.replicas[1:])
            case "move" if fleet.replicas:
                first = fleet.replicas[0]
                changed = replace(first.replica, state=rng.choice(STATES))
                fleet = replace(
                    fleet, replicas=(replace(first, replica=changed), *fleet.replicas[1:])
                )
            case "cordon":
                node = rng.choice(nodes)
                node = replace(node, cordoned=not node.cordoned)
                fleet = replace(fleet, nodes={**fleet.nodes, node.id: node})
            case "fail":
                node = rng.choice(nodes)
                assert node.inventory is not None
                devices = tuple(
                    replace(item, health=rng.choice(list(DeviceHealth)))
                    for item in node.inventory.devices
                )
                node = replace(node, inventory=replace(node.inventory, devices=devices))
                fleet = replace(fleet, nodes={**fleet.nodes, node.id: node})
            case "ports":
                machine = rng.choice(nodes).machine
                fleet = replace(fleet, blocked_ports=frozenset({(machine, 20000)}))
            case "leave":
                gone = NodeId(rng.choice("ac"))
                fleet = replace(
                    fleet, nodes={key: node for key, node in fleet.nodes.items() if key != gone}
                )
            case _:
                pass
        accounts, index = memory.accounts_of(fleet)
        fresh = Accounts(fleet)
        assert state_of(accounts, index) == state_of(fresh, FleetIndex(fresh))
        for item in fleet.replicas[:2]:  # what a plan does with them is not to stay
            for node_id, spec in item.shards:
                if node_id in accounts.nodes:
                    rng.choice([accounts.release, accounts.lend, accounts.take])(node_id, spec)
                    index.update(node_id, spec)


def test_what_fits_nowhere_is_explained_alike_after_a_change(snapshot: MakeSnapshot) -> None:
    model = values.model("m", values.profile(devices=4))
    nodes = [values.inventory(name, devices=2) for name in ("a", "b", "c")]
    fleet, memory = snapshot([model], nodes), Memory()
    first = reconcile(fleet, Pack(), memory)
    assert first == reconcile(fleet, Pack())
    cordoned = replace(fleet.nodes[NodeId("b")], cordoned=True)
    fleet = replace(fleet, nodes={**fleet.nodes, NodeId("b"): cordoned})
    second = reconcile(fleet, Pack(), memory)
    assert second == reconcile(fleet, Pack())
    assert second.plan.unplaced != first.plan.unplaced
