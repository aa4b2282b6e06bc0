"""A whole fleet on a virtual clock: the real decisions and stores, simulated nodes and faults.

Two uses. `world` runs for simulated hours under seeded faults and checks the house's invariants
after each step. `rehearsal` answers an operator's question: what would run where?
"""

from llmgw.simulate.faults import FAULTS
from llmgw.simulate.rehearsal import Rehearsal, rehearse
from llmgw.simulate.runs import Outcome, WorldSize
from llmgw.simulate.world import World

__all__ = ["FAULTS", "Outcome", "Rehearsal", "World", "WorldSize", "rehearse"]
