"""What the node is made of: the machine, its accelerators, its fabrics."""

from __future__ import annotations

from llmgw.contracts.hardware import HardwareProbe
from llmgw_agent.node.hardware.amd import AmdProbe
from llmgw_agent.node.hardware.nvidia import NvidiaProbe


def probes() -> tuple[HardwareProbe, ...]:
    """Return the probes that come with the agent, for `llmgw_hardware_probes`."""
    return (NvidiaProbe(), AmdProbe())
