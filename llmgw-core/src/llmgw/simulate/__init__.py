"""A whole fleet on a virtual clock: the real decisions and stores, simulated nodes and faults.

Two uses. `world` runs for simulated hours under seeded faults and checks the house's invariants
after each step. `rehearsal` answers an operator's question: what would run where?
"""

from llmgw.simulate.rehearsal import Rehearsal, rehearse
from llmgw.simulate.world import Outcome, World, WorldSize

__all__ = ["Outcome", "Rehearsal", "World", "WorldSize", "rehearse"]
