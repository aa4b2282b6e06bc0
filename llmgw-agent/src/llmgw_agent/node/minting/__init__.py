"""Keys, certificate requests and what certificates say, from a process of its own.

The library for it keeps 9 MB of whoever has imported it once; an agent needs it for a second in ten
days. `work` is that process. Nothing else of an agent imports `work`, nor the library.
"""

from llmgw_agent.node.minting.mint import Mint
from llmgw_agent.node.minting.papers import Facts

__all__ = ["Facts", "Mint"]
