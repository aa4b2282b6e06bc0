"""Whether one node can take one shard: the devices it would get, or the first reason why not.

The only place that words these reasons, so that the page, `explain`, the 503 body and the log
say the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.control.decide.accounts import Accounts, NodeAccount
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.need import Need
from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth, InstalledEngine, NodeState
from llmgw.domain.plans import Refusal
from llmgw.domain.units import format_duration

#: What a driver and a desktop hold on an idle device; not worth a refusal.
IDLE_USE_MIB = 512


def examine(accounts: Accounts, account: NodeAccount, need: Need) -> tuple[DeviceId, ...] | Refusal:
    """Return the devices that the shard would get on this node (() on the CPU), or why not."""
    return (
        _refused_node(accounts, account, need)
        or _refused_room(accounts, account, need)
        or _choose_devices(account, need)
    )


def refusal(
    need: Need,
    account: NodeAccount | None,
    code: str,
    sentence: str,
    *,
    wants: str = "",
    have: str = "",
    hint: str = "",
    parts: tuple[Refusal, ...] = (),
) -> Refusal:
    """Build a refusal that knows its model, profile and node."""
    return Refusal(
        code=str(code),
        sentence=sentence,
        model=need.model.name,
        profile=need.profile.name,
        node=account.id if account else None,
        need=wants,
        have=have,
        hint=hint,
        parts=parts,
    )


def has_engine(account: NodeAccount, need: Need) -> bool:
    """Return whether the node can launch the engine without installing anything."""
    if need.profile.command is not None:
        return True
    return any(_is(engine, need) for engine in account.inventory.engines)


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
    if not has_engine(account, need) and not need.engine.installable:
        wanted = profile.engine + (f" {profile.version}" if profile.version else "")
        present = ", ".join(f"{item.engine} {item.version}" for item in inventory.engines)
        return refusal(
            need,
            account,
            Code.ENGINE_MISSING,
            f"{name} has no {wanted} and cannot install it by itself",
            wants=wanted,
            have=present or "no engine",
            hint=f"install {wanted} on {name}, or name its program with `command`",
        )
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
    inventory, profile, name = account.inventory, need.profile, account.id
    if profile.ram_gib is not None:
        free_mib = free_ram_mib(account)
        wanted_mib = profile.ram_gib * 1024
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
    disk_mib = need.facts.disk_mib if need.facts else None
    disk_free_mib = inventory.disk_free_mib
    if (
        disk_mib is not None
        and disk_free_mib is not None
        and disk_free_mib < disk_mib
        and not has_weights(account, need)
    ):
        return refusal(
            need,
            account,
            Code.DISK_SHORT,
            f"{name} has {gib(disk_free_mib)} of disk free, the weights take {gib(disk_mib)}",
            wants=gib(disk_mib),
            have=gib(disk_free_mib),
            hint=f"remove weights that are not used: `llmgw ctl weights list {name}`",
        )
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


def _choose_devices(account: NodeAccount, need: Need) -> tuple[DeviceId, ...] | Refusal:
    if need.devices == 0:
        return ()
    name, count = account.id, need.devices
    usable = account.usable
    clear = [item for item in usable if _is_clear(account, need, item)]
    if len(clear) >= count:
        return _group(account, need, clear)
    wanted = f"{count} device{'s' if count > 1 else ''}"
    if len(usable) < count:
        return refusal(
            need,
            account,
            Code.TOO_FEW_DEVICES,
            f"needs {wanted}, {name} has {len(usable)}",
            wants=wanted,
            have=str(len(usable)),
            hint="split the replica over more nodes with `nodes`",
        )
    vendors = need.vendors
    if sum(item.vendor in vendors for item in usable) < count:
        present = ", ".join(sorted({item.vendor for item in usable}))
        return refusal(
            need,
            account,
            Code.DEVICE_VENDOR,
            f"{need.profile.engine} cannot use the {present} devices of {name}",
            wants=", ".join(sorted(vendors)),
            have=present,
        )
    kinds = [
        item for item in usable if item.vendor in vendors and need.matches(account.shapes[item.id])
    ]
    if len(kinds) < count:
        match = ", ".join(f"{key}={value}" for key, value in need.profile.devices.match.items())
        present = ", ".join(sorted({item.kind for item in usable}))
        return refusal(
            need,
            account,
            Code.DEVICE_KIND,
            f"needs {wanted} with {match}, {name} has {len(kinds)} such",
            wants=match,
            have=present,
        )
    return _too_few_are_clear(account, need, kinds)


def _too_few_are_clear(account: NodeAccount, need: Need, kinds: Sequence[Device]) -> Refusal:
    name, count = account.id, need.devices
    large: list[Device] = []
    unknown: list[Device] = []
    for device in kinds:
        demand = need.demand_on(device.kind)
        if demand is None or (
            device.memory_mib is None and need.profile.devices.memory_gib is None
        ):
            unknown.append(device)
        elif device.memory_mib is None or device.memory_mib >= demand.memory_mib:
            large.append(device)
    if len(large) < count:
        if len(large) + len(unknown) >= count:
            what = (
                f"how much memory {need.model.name} needs"
                if need.demand_on(unknown[0].kind) is None
                else f"how much memory {unknown[0].kind} on {name} has"
            )
            return refusal(
                need,
                account,
                Code.MEMORY_UNKNOWN,
                f"{what} is not known",
                hint="have the weights read first, `llmgw ctl weights pull NODE REF`, or write "
                "devices.memory_gib into the profile",
            )
        needed_mib = max(
            found.memory_mib for item in kinds if (found := need.demand_on(item.kind)) is not None
        )
        biggest_mib = max(item.memory_mib or 0 for item in kinds)
        return refusal(
            need,
            account,
            Code.DEVICE_MEMORY,
            f"needs {gib(needed_mib)} on each of {count}, the devices of {name} have "
            f"{gib(biggest_mib)}",
            wants=gib(needed_mib),
            have=gib(biggest_mib),
            hint=f"short by {gib(needed_mib - biggest_mib)} a device: more devices, "
            "a shorter context or smaller weights",
        )
    sound = [item for item in large if item.health is DeviceHealth.OK]
    if len(sound) < count:
        broken = next(item for item in large if item.health is not DeviceHealth.OK)
        return refusal(
            need,
            account,
            Code.DEVICES_FAILED,
            f"{len(large) - len(sound)} of {len(large)} fitting devices of {name} have failed"
            + (f": {broken.health_reason}" if broken.health_reason else ""),
            wants=f"{count} working",
            have=f"{len(sound)} working",
        )
    free = [item for item in sound if item.id in account.free]
    if len(free) < count:
        return refusal(
            need,
            account,
            Code.DEVICES_BUSY,
            f"needs {count} of the fitting devices, {len(free)} of {len(sound)} are free on {name}",
            wants=f"{count} free",
            have=f"{len(free)} free",
            hint=_holders_hint(account),
        )
    spoilt = next(item for item in free if _strangers_mib(need, item) is not None)
    return _foreign(account, need, spoilt)


def _is_clear(account: NodeAccount, need: Need, device: Device) -> bool:
    """Return whether nothing at all speaks against this device."""
    return (
        device.id in account.free
        and need.fits(account.shapes[device.id])
        and device.health is DeviceHealth.OK
        and _strangers_mib(need, device) is None
    )


def _group(
    account: NodeAccount, need: Need, clear: Sequence[Device]
) -> tuple[DeviceId, ...] | Refusal:
    """Choose devices of one kind, on one island if the links matter, the tightest fit first."""
    by_kind: dict[tuple[str, int], list[Device]] = {}
    for device in clear:
        by_kind.setdefault((device.kind, device.memory_mib or 0), []).append(device)
    best: tuple[tuple[int, int, int], list[Device]] | None = None
    largest = 0
    for (_, memory_mib), devices in sorted(by_kind.items(), key=lambda item: item[0]):
        islands: dict[str | None, list[Device]] = {}
        for device in devices:
            islands.setdefault(device.island, []).append(device)
        for island, members in islands.items():
            joined = len(members) if island is not None or need.devices == 1 else 0
            largest = max(largest, joined)
            if len(members) >= need.devices and (joined or not need.one_island):
                # Small devices first, then the island that is left with the fewest.
                rank = (memory_mib, 0, len(members))
                if best is None or rank < best[0]:
                    best = (rank, members)
        if len(devices) >= need.devices and not need.one_island:
            rank = (memory_mib, 1, len(devices))
            if best is None or rank < best[0]:
                best = (rank, devices)
    if best is not None:
        chosen = sorted(best[1], key=lambda item: (item.memory_used_mib or 0, item.index))
        return tuple(item.id for item in chosen[: need.devices])
    if need.one_island:
        return refusal(
            need,
            account,
            Code.ISLAND_TOO_SMALL,
            f"needs {need.devices} free devices joined by {need.profile.fabric}, the largest free "
            f"group on {account.id} has {largest}",
            wants=str(need.devices),
            have=str(largest),
            hint="drop `fabric`, or use fewer devices",
        )
    return refusal(
        need,
        account,
        Code.DEVICE_KIND,
        f"needs {need.devices} devices of one kind, {account.id} has them of different kinds",
        wants=f"{need.devices} of one kind",
        have=", ".join(f"{len(items)} {kind}" for (kind, _), items in sorted(by_kind.items())),
        hint="name the kind in devices.match",
    )


def _strangers_mib(need: Need, device: Device) -> int | None:
    """Return what others use of a free device, if it leaves too little; None if it does not."""
    if device.memory_used_mib is None or device.memory_mib is None or device.memory_shared:
        return None
    demand = need.demand_on(device.kind)
    if demand is None or device.memory_used_mib <= IDLE_USE_MIB:
        return None
    left_mib = device.memory_mib - device.memory_used_mib
    return device.memory_used_mib if left_mib < demand.memory_mib else None


def _foreign(account: NodeAccount, need: Need, device: Device) -> Refusal:
    used = gib(device.memory_used_mib or 0)
    strangers = [item for item in device.processes if not item.ours]
    who = f"pid {strangers[0].pid}" if strangers else "processes that are not llmgw's"
    return refusal(
        need,
        account,
        Code.FOREIGN_PROCESS,
        f"{used} of {device.id} on {account.id} are used by {who}",
        have=f"{gib((device.memory_mib or 0) - (device.memory_used_mib or 0))} free",
        hint=f"end that process on {account.id}, or cordon the node",
    )


def _holders_hint(account: NodeAccount) -> str:
    models = ", ".join(sorted(str(name) for name, count in account.models.items() if count > 0))
    return f"held by {models}" if models else "held by another agent on this machine"


def free_ram_mib(account: NodeAccount) -> float | None:
    """Return main memory that nobody has booked or uses; None: not known."""
    inventory = account.inventory
    if not inventory.ram_mib:
        return None
    unbooked = inventory.ram_mib - account.ram_booked_mib
    if inventory.ram_available_mib is None:
        return unbooked
    return min(unbooked, float(inventory.ram_available_mib))


def gib(mib: float) -> str:
    """Return MiB for people, in GiB."""
    return f"{mib / 1024:.1f} GiB"


def _newer(agent: str, server: str) -> bool:
    try:
        theirs, ours = (
            tuple(int(part) for part in text.split(".")[:2]) for text in (agent, server)
        )
    except ValueError:
        return False  # a development build says nothing about its age
    return theirs > ours
