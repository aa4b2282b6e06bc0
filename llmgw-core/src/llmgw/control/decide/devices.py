"""Which devices of a node a shard would get, or the first reason why there are not enough."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.control.decide.accounts import NodeAccount
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.need import Need
from llmgw.control.decide.refusals import gib, refusal
from llmgw.domain.ids import DeviceId
from llmgw.domain.nodes import Device, DeviceHealth
from llmgw.domain.plans import Refusal

#: What a driver and a desktop hold on an idle device; not worth a refusal.
IDLE_USE_MIB = 512


def choose_devices(account: NodeAccount, need: Need) -> tuple[DeviceId, ...] | Refusal:
    """Return the devices that a shard would get (() on the CPU), or why there are too few."""
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
