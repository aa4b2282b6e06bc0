"""What goes wrong, drawn from a seed. Each fault ends by itself or is healed at the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmgw.domain.catalog import Model, Scale
from llmgw.domain.nodes import DeviceHealth
from llmgw.domain.replicas import FailureCause
from llmgw.domain.roles import Role
from llmgw.simulate.nodes import ALIVE
from llmgw.simulate.world import Fault, World


def agent_silent(world: World) -> None:
    """An agent stops, or its node is cut off, from a second to twenty minutes."""
    node = world.draw_node()
    world.cut(node)
    world.events.after(world.random.choice([1, 20, 60, 200, 400, 1200]), lambda: world.link(node))


def agent_flaps(world: World) -> None:
    """A link that comes and goes."""
    node = world.draw_node()
    for turn in range(world.random.randint(3, 20)):
        world.events.after(2.0 * turn, lambda: world.cut(node))
        world.events.after(2.0 * turn + 1.0, lambda: world.link(node))


def half_silent(world: World) -> None:
    """A switch dies: most of the fleet is silent at once."""
    chosen = world.random.sample(sorted(world.nodes), max(1, len(world.nodes) * 6 // 10))
    for node in chosen:
        world.cut(node)
    duration_s = world.random.uniform(30, 900)
    for node in chosen:
        world.events.after(duration_s + world.random.uniform(0, 30), partial(world.link, node))


def host_dies(world: World) -> None:
    """A host goes down with all its engines, and boots again; meanwhile it may be fenced."""
    node = world.draw_node()
    world.nodes[node].go_down()
    world.cut(node)
    if world.random.random() < 0.2:
        world.tell_operator(node, "fence")
    world.events.after(world.random.uniform(30, 1500), lambda: world.boot(node))


def engine_crashes(world: World) -> None:
    """One engine dies by itself."""
    alive = [
        (node, engine)
        for node in world.nodes.values()
        for engine in node.engines.values()
        if engine.state in ALIVE and node.host_up
    ]
    if alive:
        node, engine = world.random.choice(alive)
        node.crash(engine, world.random.choice([*FailureCause]))


def version_breaks(world: World) -> None:
    """One version of a model crashes on one node for a while."""
    node = world.nodes[world.draw_node()]
    specs = sorted({engine.spec.spec_hash for engine in node.engines.values()})
    if not specs:
        return
    broken = world.random.choice(specs)
    node.broken.add(broken)
    for engine in list(node.engines.values()):
        if engine.spec.spec_hash == broken and engine.state in ALIVE and node.host_up:
            node.crash(engine)
    world.events.after(world.random.uniform(60, 600), lambda: node.broken.discard(broken))


def device_fails(world: World) -> None:
    """A GPU falls off the bus, with the engine on it, and comes back."""
    node = world.nodes[world.draw_node()]
    if not node.inventory.devices or not node.host_up:
        return
    chosen = world.random.choice(node.inventory.devices)

    def set_health(health: DeviceHealth) -> None:
        devices = tuple(
            replace(item, health=health) if item.id == chosen.id else item
            for item in node.inventory.devices
        )
        node.inventory = replace(node.inventory, devices=devices)
        world.tell_devices(node)

    set_health(DeviceHealth.FAILED)
    for engine in list(node.engines.values()):
        if chosen.id in engine.spec.devices and engine.state in ALIVE:
            node.crash(engine, FailureCause.DEVICE_LOST)
    world.events.after(world.random.uniform(60, 900), lambda: set_health(DeviceHealth.OK))


def server_restarts(world: World) -> None:
    """A server dies and starts again, knowing nothing."""
    if world.servers:
        world.restart_server(world.random.choice(sorted(world.servers)))


def server_freezes(world: World) -> None:
    """A server stands still, perhaps the one that leads, and goes on without having noticed."""
    if world.servers:
        name = world.random.choice(sorted(world.servers))
        world.freeze_server(name, world.random.choice([5.0, 12.0, 60.0]))


def leader_hands_over(world: World) -> None:
    """Whoever leads is stopped in order, and another takes over at once."""
    world.hand_over()


def store_away(world: World) -> None:
    """The shared store does not answer."""
    world.lease.away = True

    def back() -> None:
        world.lease.away = False

    world.events.after(world.random.uniform(5, 600), back)


def clock_jumps(world: World) -> None:
    """The wall clock is set by hours."""
    world.time.jump_wall(world.random.choice([-7200.0, 7200.0, 3.0]))


def messages_lost(world: World) -> None:
    """For a while half of the commands vanish on their way."""
    world.loss = 0.5

    def over() -> None:
        world.loss = 0.0

    world.events.after(world.random.uniform(10, 120), over)


def catalog_edited(world: World) -> None:
    """An operator changes, removes or brings back a model."""
    index = world.random.randrange(len(world.catalog))
    model = world.catalog[index]
    kind = world.random.choice(["scale", "options", "remove", "restore"])
    catalog: list[Model] = list(world.catalog)
    if kind == "scale":
        low = world.random.randint(0, 3)
        scale = Scale(min=low, max=max(1, low + world.random.randint(0, 2)))
        # Of a model with roles both change alike.
        change = {"roles": dict.fromkeys(Role, scale)} if model.has_roles else {"replicas": scale}
        catalog[index] = model.model_copy(update={**change, "idle_after": None})
    elif kind == "options":
        changed = tuple(
            item.model_copy(update={"options": {"seed": world.random.randint(0, 9)}})
            for item in model.profiles
        )
        catalog[index] = model.model_copy(update={"profiles": changed})
    elif kind == "remove" and len(catalog) > 1:
        del catalog[index]
    else:
        names = {item.name for item in catalog}
        catalog += [item for item in world.first_catalog if item.name not in names][:1]
    world.set_catalog(tuple(catalog))


def node_told(world: World) -> None:
    """An operator cordons, drains or releases a node."""
    kind = world.random.choice(["cordon", "drain", "release", "release"])
    world.tell_operator(world.draw_node(), kind)


def somebody_waits(world: World) -> None:
    """A request for a model comes, perhaps for one that sleeps."""
    model = world.random.choice(world.catalog)
    for server in world.servers.values():
        server.stores.wake.nudge(model.name, now=world.time.now)


FAULTS: tuple[tuple[Fault, int], ...] = (
    (agent_silent, 8),
    (agent_flaps, 3),
    (half_silent, 1),
    (host_dies, 4),
    (engine_crashes, 10),
    (version_breaks, 4),
    (device_fails, 3),
    (server_restarts, 3),
    (server_freezes, 3),
    (leader_hands_over, 2),
    (store_away, 2),
    (clock_jumps, 2),
    (messages_lost, 2),
    (catalog_edited, 8),
    (node_told, 5),
    (somebody_waits, 15),
)
"""With how often each is drawn."""
