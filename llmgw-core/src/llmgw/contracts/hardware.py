"""How a node finds its accelerators."""

from __future__ import annotations

from typing import Protocol

from llmgw.domain.nodes import Device


class HardwareProbe(Protocol):
    """One vendor's devices. Called on a thread, not always the same: a hanging driver delays nothing else."""

    @property
    def vendor(self) -> str: ...

    def devices(self, our_pids: frozenset[int]) -> tuple[Device, ...]:
        """Return the devices as they are now; () where there are none or no driver.

        A field that cannot be read is None. One device that fails is listed as failed, with a
        reason, and does not hide the others (C045, C046). Ids are unique on the node and last
        over restarts. our_pids: processes of this agent's engines.
        """
        ...
