"""What there is in a simulated world: its nodes, and a catalog drawn from the seed."""

from __future__ import annotations

from random import Random

from llmgw.domain.catalog import DeviceNeed, Model, Parallel, Profile, Scale
from llmgw.domain.ids import DeviceId, ModelName, NodeId, ProfileName
from llmgw.domain.nodes import Device, InstalledEngine, NodeInventory
from llmgw.domain.roles import Role

ENGINE = "simulated"


def make_node(name: str, *, number: int, devices: int) -> NodeInventory:
    """Return a node with devices on islands of four; four nodes share a rail."""
    return NodeInventory(
        node=NodeId(name),
        agent_uid=f"uid-{name}",
        boot_id=f"boot-{name}-1",
        machine_id=f"machine-{name}",
        agent_version="0.1.0",
        hostname=name,
        data_address="127.0.0.1",
        fabric={"ib": f"rail{number // 4}"},
        ram_mib=1024 * 1024,
        devices=tuple(
            Device(
                id=DeviceId(f"{name}-gpu{index}"),
                index=index,
                kind="NVIDIA H100 80GB HBM3",
                vendor="nvidia",
                memory_mib=81559,
                island=f"nv{index // 4}",
            )
            for index in range(devices)
        ),
        engines=(InstalledEngine(engine=ENGINE, version="1", path="/opt/simulated"),),
        capabilities=frozenset({"sleep", "roles"}),
    )


def draw_model(random: Random, index: int, *, is_paired: bool = False) -> Model:
    """Return a model on none, a few or many devices, which may or may not sleep.

    is_paired: it computes prompts and answers apart.
    """
    devices = random.choice([0, 1, 1, 1, 2, 4])
    nodes = 2 if devices == 4 and random.random() < 0.5 else 1
    low = random.choice([0, 1, 1, 2])
    scale = Scale(min=low, max=max(1, low + random.choice([0, 0, 1])))
    model = Model(
        name=ModelName(f"m{index:03}"),
        replicas=scale,
        idle_after=random.choice([60.0, 300.0]) if low == 0 else None,
        profiles=(
            Profile(
                engine=ENGINE,
                weights="path:/models/simulated",
                devices=DeviceNeed(count=devices, memory_gib=40 if devices else None),
                nodes=nodes,
                parallel=Parallel(tensor=devices or 1),
                priority=random.choice([0, 0, 1, 5]),
            ),
        ),
    )
    return _paired(model) if is_paired else model


def _paired(model: Model) -> Model:
    """Return the model with as many replicas for prompts, and as many for answers."""
    (profile,) = model.profiles
    halves = tuple(
        profile.model_copy(update={"name": ProfileName(role.value), "role": role}) for role in Role
    )
    roles = dict.fromkeys(Role, model.replicas)
    return model.model_copy(update={"profiles": halves, "roles": roles, "replicas": Scale()})
