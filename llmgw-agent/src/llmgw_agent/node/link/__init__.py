"""The agent's end of the stream: dials every server, for ever."""

from llmgw_agent.node.link.abilities import Abilities, Engines, Logs, Sharing, Weights
from llmgw_agent.node.link.dialler import Link
from llmgw_agent.node.link.lag import LoopLag
from llmgw_agent.node.link.orders import Commands
from llmgw_agent.node.link.session import Membership
from llmgw_agent.node.link.status import ServerState, ServerStatus

__all__ = [
    "Abilities",
    "Commands",
    "Engines",
    "Link",
    "Logs",
    "LoopLag",
    "Membership",
    "ServerState",
    "ServerStatus",
    "Sharing",
    "Weights",
]
