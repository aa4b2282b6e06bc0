"""The agent's end of the stream: dials every server, for ever."""

from llmgw_agent.node.link.abilities import Abilities, Engines, Logs, Weights
from llmgw_agent.node.link.dialler import Link
from llmgw_agent.node.link.lag import LoopLag
from llmgw_agent.node.link.session import Commands, Membership
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
    "Weights",
]
