"""Whether one node can take one shard: the devices it would get, or the first reason why not.

Only here, in `devices` and in `refusals` are these reasons worded, so that the page, `explain`,
the 503 body and the log say the same.
"""

from __future__ import annotations

from llmgw.control.decide.accounts import Accounts, NodeAccount
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.devices import choose_devices
from llmgw.control.decide.disk import Shortage, find_shortage
from llmgw.control.decide.need import ROLES, Need
from llmgw.control.decide.refusals import gib, refusal
from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import InstalledEngine, NodeState
from llmgw.domain.plans import Refusal
from llmgw.domain.units import format_duration


def examine(accounts: Accounts, account: NodeAccount, need: Need) -> tuple[DeviceId, ...] | Refusal:
    """Return the devices that the shard would get on this node (() on the CPU), or why not."""
    return (
        _refused_node(accounts, account, need)
        or _refused_room(accounts, account, need)
        or choose_devices(account, need)
    )


def has_engine(account: NodeAccount, need: Need) -> bool:
    """Return whether the node can launch the engine without installing anything."""
    if need.profile.command is not None:
        return True
    return any(_is(engine, need) for engine in account.inventory.engines)


def _installable(account: NodeAccount, need: Need) -> frozenset[str]:
    """Return the engine's versions that the node can install: its adapter or the site has a lock."""
    of_adapter = need.engine.installable if need.engine is not None else frozenset()
    return of_adapter | {
        item.version for item in account.inventory.installable if item.engine == need.profile.engine
    }


def _engine_missing(account: NodeAccount, need: Need) -> Refusal:
    name, engine, version = account.id, need.profile.engine, need.profile.version
    wanted = engine + (f" {version}" if version else "")
    present = ", ".join(f"{item.engine} {item.version}" for item in account.inventory.engines)
    why, way_out = (
        "cannot install it by itself",
        f"llmgw ctl engines install {name} {engine} VERSION",
    )
    if versions := _installable(account, need):
        way_out = f"give the profile a `version` that it can install: {', '.join(sorted(versions))}"
        if version is None:
            why = "the profile names no version to install"
    return refusal(
        need,
        account,
        Code.ENGINE_MISSING,
        f"{name} has no {wanted} and {why}",
        wants=wanted,
        have=present or "no engine",
        hint=f"{way_out}; or name its program with `command`",
    )


def _is(engine: InstalledEngine, need: Need) -> bool:
    return engine.engine == need.profile.engine and need.profile.version in (None, engine.version)


def has_weights(account: NodeAccount, need: Need) -> bool:
    """Return whether the weights lie on the node."""
    return any(item.ref == need.profile.weights for item in account.inventory.weights)


def _refused_node(accounts: Accounts, account: NodeAccount, need: Need) -> Refusal | None:
    """Check what does not depend on what else runs there."""
    record, inventory, profile = account.record, account.inventory, need.profile
    name = account.id
    if record.state is not NodeState.READY:
        return refusal(
            need,
            account,
            Code.NODE_NOT_READY,
            f"{name} is {record.state}",
            wants="ready",
            have=str(record.state),
            hint=f"look at the agent on {name}: `systemctl status llmgw-agent`",
        )
    if record.draining or record.cordoned:
        code = Code.NODE_DRAINING if record.draining else Code.NODE_CORDONED
        because = f" ({record.because})" if record.because else ""
        return refusal(
            need,
            account,
            code,
            f"{name} is {'draining' if record.draining else 'cordoned'}{because}",
            hint=f"llmgw ctl uncordon {name}",
        )
    if inventory.leaving:
        return refusal(
            need,
            account,
            Code.AGENT_LEAVING,
            f"the agent of {name} stops its engines and will end",
            hint=f"start the agent on {name} again",
        )
    if _newer(inventory.agent_version, accounts.snapshot.limits.agent_version):
        return refusal(
            need,
            account,
            Code.AGENT_TOO_NEW,
            f"the agent of {name} is {inventory.agent_version}, newer than the server's "
            f"{accounts.snapshot.limits.agent_version}",
            hint="upgrade the server",
        )
    if profile.role is not None and ROLES not in inventory.capabilities:
        return refusal(
            need,
            account,
            Code.AGENT_TOO_OLD,
            f"the agent of {name} is {inventory.agent_version}, which knows no roles",
            hint=f"upgrade the agent of {name}",
        )
    if inventory.pool != profile.pool:
        return refusal(
            need,
            account,
            Code.POOL_MISMATCH,
            f"{name} is in pool {inventory.pool}, the profile asks for {profile.pool}",
            wants=profile.pool,
            have=inventory.pool,
            hint=f"start the agent with `--pool {profile.pool}`, or change the profile's pool",
        )
    for key, wanted in profile.labels.items():
        have = inventory.labels.get(key)
        if have != wanted:
            return refusal(
                need,
                account,
                Code.LABEL_MISMATCH,
                f"{name} has {key}={have or '(none)'}, the profile asks for {key}={wanted}",
                wants=f"{key}={wanted}",
                have=f"{key}={have}" if have else "no such label",
                hint=f"start the agent with `--label {key}={wanted}`",
            )
    fabric = need.node_fabric
    if fabric is not None and fabric not in inventory.fabric:
        return refusal(
            need,
            account,
            Code.FABRIC_MISSING,
            f"{name} has no fabric label {fabric}",
            wants=fabric,
            have=", ".join(sorted(key for key in inventory.fabric if not key.endswith(".address")))
            or "no fabric",
            hint=f"label the agents that this fabric joins: `--fabric {fabric}=NAME`",
        )
    if need.engine is None:
        return refusal(
            need,
            account,
            Code.ENGINE_UNKNOWN,
            f"no installed package supplies the engine {profile.engine}",
            wants=profile.engine,
            have=", ".join(sorted(accounts.snapshot.engines)) or "no engine",
            hint=f"pip install llmgw-engine-{profile.engine}",
        )
    if not has_engine(account, need) and profile.version not in _installable(account, need):
        return _engine_missing(account, need)
    if (avoidance := need.avoided.get(account.id)) is not None:
        left = format_duration(avoidance.until - accounts.snapshot.now)
        cause = f": {avoidance.failure.message}" if avoidance.failure else ""
        return refusal(
            need,
            account,
            Code.CRASH_LOOP,
            f"this version failed on {name} and is kept off it for {left}{cause}",
            hint=(avoidance.failure.hint if avoidance.failure else "")
            or f"see `llmgw ctl logs {name}`; changing the entry tries again at once",
        )
    return None


def _refused_room(accounts: Accounts, account: NodeAccount, need: Need) -> Refusal | None:
    """Check main memory, disk and ports."""
    inventory, name = account.inventory, account.id
    if (wanted_mib := need.ram_mib) is not None:
        free_mib = free_ram_mib(account)
        if free_mib is not None and free_mib < wanted_mib:
            return refusal(
                need,
                account,
                Code.RAM_SHORT,
                f"{name} has {gib(free_mib)} of main memory free, {gib(wanted_mib)} are needed",
                wants=gib(wanted_mib),
                have=gib(free_mib),
                hint=f"short by {gib(wanted_mib - free_mib)}",
            )
    if (short := find_shortage(account, need.refs, accounts.snapshot.facts)) is not None:
        return _disk_short(account, need, short)
    if len(accounts.free_ports(account.id, need.ports)) < need.ports:
        low, high = accounts.snapshot.limits.port_range
        return refusal(
            need,
            account,
            Code.NO_PORT,
            f"no {need.ports} free ports on {name} within {low}-{high} and its own "
            f"{inventory.port_range[0]}-{inventory.port_range[1]}",
            wants=f"{need.ports} ports",
            hint="widen control.port_range and the agent's",
        )
    return None


def _disk_short(account: NodeAccount, need: Need, short: Shortage) -> Refusal:
    name, free_mib = account.id, max(0.0, short.free_mib)
    left_out = f", {gib(short.arriving_mib)} on their way left out" if short.arriving_mib else ""
    free = f"{gib(free_mib)} of disk for weights, unused ones counted{left_out}"
    what = f"{name} has {free}, and these take {gib(short.wanted_mib)}"
    if not short.wanted_mib:
        what = f"the weights on {name} give way to {gib(short.arriving_mib)} on their way there"
    return refusal(
        need,
        account,
        Code.DISK_SHORT,
        what,
        wants=gib(short.wanted_mib),
        have=gib(free_mib),
        hint=f"short by {gib(short.wanted_mib - short.free_mib)}; what replicas there use: "
        f"`llmgw ctl weights list {name}`",
    )


def free_ram_mib(account: NodeAccount) -> float | None:
    """Return main memory that nobody has booked or uses; None: not known."""
    inventory = account.inventory
    if not inventory.ram_mib:
        return None
    unbooked = inventory.ram_mib - account.ram_booked_mib
    if inventory.ram_available_mib is None:
        return unbooked
    return min(unbooked, float(inventory.ram_available_mib))


def _newer(agent: str, server: str) -> bool:
    try:
        theirs, ours = (
            tuple(int(part) for part in text.split(".")[:2]) for text in (agent, server)
        )
    except ValueError:
        return False  # a development build says nothing about its age
    return theirs > ours
