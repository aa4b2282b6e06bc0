"""Profiles, assignments and ends of engines, as tests need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgw.contracts.engine import Assignment, EngineExit, EngineHome
from llmgw.domain.catalog import Profile
from llmgw.domain.commands import Peer, ShardSpec
from llmgw.domain.ids import DeviceId, ModelName, NodeId, ReplicaId, shard_id
from llmgw.domain.secret import Secret

CREDENTIAL = "canary-engine-key-5f3a"  #: the key in every assignment made here


def profile(engine: str, **fields: Any) -> Profile:
    """Return a profile with weights that a check may like, and the given fields."""
    return Profile(**{"engine": engine, "weights": "path:/models/tiny", **fields})


def assignments(
    of: Profile,
    *,
    names: tuple[str, ...] = ("acme/tiny-7b:q4", "tiny"),
    home: EngineHome | None = None,
    ports_per_shard: int = 4,
) -> tuple[Assignment, ...]:
    """Return the assignments of every shard of one replica, in the order of ranks.

    One shard per node, as the placement makes them, with its share of the devices.
    """
    per_node = of.devices.count // of.nodes
    replica = ReplicaId("tiny-1-1")
    shards = [
        Peer(
            rank=rank,
            node=NodeId(f"node-{rank}"),
            address=f"127.0.0.{rank + 1}",
            ports=tuple(range(20000 + 100 * rank, 20000 + 100 * rank + ports_per_shard)),
            devices=per_node,
        )
        for rank in range(of.nodes)
    ]
    return tuple(
        Assignment(
            spec=ShardSpec(
                id=shard_id(replica, peer.rank),
                replica=replica,
                model=ModelName(names[0]),
                served_names=tuple(map(ModelName, names)),
                profile=of.name,
                spec_hash="0" * 16,
                engine=of.engine,
                engine_version=of.version,
                weights=of.weights,
                options=of.options,
                devices=tuple(
                    DeviceId(f"GPU-{peer.rank:04x}-{number:04x}") for number in range(per_node)
                ),
                rank=peer.rank,
                ports=peer.ports,
                tensor=of.parallel.tensor,
                pipeline=of.parallel.pipeline,
                data=of.parallel.data,
                peers=tuple(shards) if len(shards) > 1 or of.role else (),
                command=of.command,
                env=of.env,
                stop_grace_s=of.stop_grace,
                role=of.role,
            ),
            home=home or EngineHome(python="/opt/engine/bin/python", command=of.command),
            weights_path="/models/tiny",
            bind_address=peer.address,
            device_indices=tuple(range(per_node)),
            credential=Secret(CREDENTIAL),
            scratch="/var/lib/llmgw/shards/x/tmp",
        )
        for peer in shards
    )


def ended(
    exit_code: int | None,
    *tail: str,
    head: tuple[str, ...] = (),
    was_ready: bool = False,
    options: Mapping[str, object] | None = None,
) -> EngineExit:
    """Return the end of an engine that printed these lines last."""
    spec = assignments(profile("any", options=options or {}))[0].spec
    return EngineExit(exit_code=exit_code, head=head, tail=tail, was_ready=was_ready, spec=spec)
