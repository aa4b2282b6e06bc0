"""How it is said that a profile has no place, from one node's reason to the whole fleet's."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.contracts.placement import Veto
from llmgw.control.decide.accounts import NodeAccount
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.need import Need
from llmgw.domain.plans import Refusal


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


def impossible(need: Need) -> Refusal | None:
    """Return why the profile could run nowhere, whatever the fleet; None if it could."""
    heads = need.facts.attention_heads if need.facts else None
    tensor = need.profile.parallel.tensor
    if heads is None or heads % tensor == 0:
        return None
    fitting = max(size for size in range(1, tensor) if heads % size == 0)
    return refusal(
        need,
        None,
        Code.TENSOR_INDIVISIBLE,
        f"{heads} attention heads cannot be split over {tensor} devices",
        wants=f"a divisor of {heads}",
        have=str(tensor),
        hint=f"use parallel.tensor: {fitting}",
    )


def nowhere(need: Need, nodes: int, parts: tuple[Refusal, ...]) -> Refusal:
    """Refuse a profile that none of so many nodes can take, the nearest of `parts` first."""
    if not parts:
        return refusal(
            need,
            None,
            Code.NO_NODES,
            "no node has registered",
            hint="start `llmgw agent` on a machine, or wait for it to come back",
        )
    where = "does not fit on the only node" if nodes == 1 else f"fits on none of {nodes} nodes"
    return refusal(
        need,
        None,
        Code.PROFILE_UNPLACED,
        f"profile {need.profile.name} {where}; nearest: {parts[0].sentence}",
        wants=parts[0].need,
        have=parts[0].have,
        hint=parts[0].hint,
        parts=parts,
    )


def gang_too_small(
    need: Need, willing: Sequence[NodeAccount], parts: tuple[Refusal, ...]
) -> Refusal:
    """Refuse a gang that these nodes could take shards of. parts: why the others could not."""
    what = need.profile.fabric or "any fabric label"
    machines = len({account.record.machine for account in willing})
    hint = parts[0].hint if parts else "give these agents a common fabric label"
    if machines < need.shards <= len(willing):
        hint = "agents of one machine count once, unless each has a `--machine` of its own"
    return refusal(
        need,
        None,
        Code.GANG_TOO_SMALL,
        f"needs {need.shards} machines that share {what} at the same time; "
        f"{machines} could take a shard",
        wants=f"{need.shards} machines on one fabric",
        have=f"{machines} machines with room",
        hint=hint,
        parts=parts,
    )


def vetoed(need: Need, policy: str, vetoes: Sequence[tuple[NodeAccount, Veto]]) -> Refusal:
    """Refuse what the policy wants nowhere; each veto with the node that it is about."""
    parts = tuple(
        refusal(
            need,
            account,
            veto.code or Code.POLICY_VETO,
            veto.sentence or f"policy {policy} gave no reason",
        )
        for account, veto in vetoes
    )
    places = "the only feasible place"
    if len(vetoes) > 1:
        places = f"all {len(vetoes)} feasible places; first"
    return refusal(
        need,
        None,
        Code.PROFILE_UNPLACED,
        f"policy {policy} ruled out {places}: {parts[0].sentence}",
        parts=parts,
    )


#: From what passes by itself or is nearly enough, to what would need another machine.
_NEAREST_FIRST: tuple[str, ...] = (
    Code.DEVICES_BUSY,
    Code.FOREIGN_PROCESS,
    Code.ISLAND_TOO_SMALL,
    Code.RAM_SHORT,
    Code.DISK_SHORT,
    Code.NO_PORT,
    Code.NODE_DRAINING,
    Code.NODE_CORDONED,
    Code.AGENT_LEAVING,
    Code.CRASH_LOOP,
    Code.DEVICES_FAILED,
    Code.NODE_NOT_READY,
    Code.MEMORY_UNKNOWN,
    Code.DEVICE_MEMORY,
    Code.ENGINE_MISSING,
    Code.DEVICE_KIND,
    Code.TOO_FEW_DEVICES,
    Code.DEVICE_VENDOR,
    Code.FABRIC_MISSING,
    Code.LABEL_MISMATCH,
    Code.POOL_MISMATCH,
    Code.AGENT_TOO_NEW,
    Code.AGENT_TOO_OLD,
    Code.ENGINE_UNKNOWN,
)


def nearness(code: str) -> int:
    """Return a code's place among those from what is nearly enough to what would need much."""
    return _NEAREST_FIRST.index(code) if code in _NEAREST_FIRST else len(_NEAREST_FIRST)


def gib(mib: float) -> str:
    """Return MiB for people, in GiB."""
    return f"{mib / 1024:.1f} GiB"
