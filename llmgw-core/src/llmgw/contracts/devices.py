"""Letting an engine see the devices of its shard and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence

# NVIDIA's UUIDs (`GPU-8d6b…-…`, `MIG-…`) have dashes inside; AMD's are 16 hex digits.
_AMD = re.compile(r"GPU-[0-9a-f]{16}", re.IGNORECASE)

VISIBILITY = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that must not be inherited: what they number may be other devices here."""


def visible_devices(devices: Sequence[str]) -> dict[str, str]:
    """Return the environment that shows exactly these devices, by UUID and never by index.

    () shows none of NVIDIA's, also to a program that would look: a replica that was promised no
    device must not take the memory of one.
    """
    if devices and all(_AMD.fullmatch(device) for device in devices):
        # The lowest layer of ROCm, and the only one that takes UUIDs; those above number from 0.
        return {"ROCR_VISIBLE_DEVICES": ",".join(devices)}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
