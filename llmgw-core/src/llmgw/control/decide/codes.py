"""Every reason why something does not run, once, with the sentence that the handbook prints."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class RefusalCode(StrEnum):
    """Stable codes of `Refusal.code`. `meaning` explains each to an operator."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # The model as a whole.
    UNPLACED = "unplaced", "Fewer replicas run than should; the parts say why, per profile."
    NO_PROFILE = "no_profile", "The model declares no profile, so only static endpoints serve it."
    NO_NODES = "no_nodes", "No node has registered yet; start an agent, or wait for it."
    PROFILE_UNPLACED = "profile_unplaced", "No node can run this profile now; the parts say why."
    ROLLOUT_FAILED = (
        "rollout_failed",
        "The new version failed, so the old one goes on serving until the entry or its cause changes.",
    )
    START_FAILED = (
        "start_failed",
        "The engine has not come up yet and fails each time; its failure's cause says why.",
    )
    CRASH_LOOP = (
        "crash_loop",
        "The profile failed on this node too often and is kept off it for a while.",
    )
    SLEEP_UNSAFE = (
        "sleep_unsafe",
        "It is stopped instead: its sleep endpoints ask for no key, and others reach them there.",
    )
    # The profile, wherever it goes.
    ENGINE_UNKNOWN = "engine_unknown", "No installed plugin supplies this engine."
    MEMORY_UNKNOWN = (
        "memory_unknown",
        "How much device memory is needed, or there is, is not known, and is never guessed.",
    )
    TENSOR_INDIVISIBLE = (
        "tensor_indivisible",
        "The number of attention heads is not a multiple of the tensor-parallel size.",
    )
    # One node.
    NODE_NOT_READY = "node_not_ready", "The node is suspect, disconnected, lost or fenced."
    NODE_CORDONED = "node_cordoned", "An operator keeps new replicas off the node."
    NODE_DRAINING = "node_draining", "The node is being emptied."
    AGENT_LEAVING = (
        "agent_leaving",
        "The agent stops its engines and will end; it takes on nothing more.",
    )
    AGENT_TOO_NEW = (
        "agent_too_new",
        "The agent is newer than this server; upgrade the server first.",
    )
    AGENT_TOO_OLD = (
        "agent_too_old",
        "The agent is older than what the profile needs; upgrade it.",
    )
    POOL_MISMATCH = "pool_mismatch", "The node belongs to another pool."
    LABEL_MISMATCH = "label_mismatch", "The node lacks a label that the profile asks for."
    FABRIC_MISSING = "fabric_missing", "The node or its devices lack the fabric label."
    ENGINE_MISSING = (
        "engine_missing",
        "The node has no such engine (or version) and cannot install it by itself.",
    )
    DEVICE_VENDOR = "device_vendor", "The engine cannot use the accelerators of the node."
    DEVICE_KIND = "device_kind", "Too few devices of the node are of the kind asked for."
    DEVICES_FAILED = "devices_failed", "Enough devices are there, but some of them have failed."
    DEVICES_BUSY = "devices_busy", "Enough devices are there, but other replicas hold them."
    TOO_FEW_DEVICES = "too_few_devices", "The node has fewer devices than one shard needs."
    DEVICE_MEMORY = "device_memory", "The devices are too small."
    FOREIGN_PROCESS = "foreign_process", "Memory of a free device is used by somebody else."
    ISLAND_TOO_SMALL = (
        "island_too_small",
        "Enough devices are free, but not within one group joined by fast links.",
    )
    RAM_SHORT = "ram_short", "Too little main memory is free."
    DISK_SHORT = "disk_short", "Too little disk is free for the weights."
    NO_PORT = "no_port", "All ports of the range are taken on the machine."
    GANG_TOO_SMALL = (
        "gang_too_small",
        "Too few nodes that share a fabric can take a shard at the same time.",
    )
    ADAPTER_FAILED = (
        "adapter_failed",
        "The model serves, but none of its engines can load this adapter.",
    )
    POLICY_VETO = (
        "policy_veto",
        "The placement policy ruled the node out without a code of its own, or failed.",
    )
