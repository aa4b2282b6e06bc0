"""Who this node is to its cluster: key, certificate, joining, renewal."""

from llmgw_agent.node.identity.credentials import NodeCredentials
from llmgw_agent.node.identity.keeping import KeptIdentity
from llmgw_agent.node.identity.peers import NotAPeer, PeerTls
from llmgw_agent.node.identity.tokens import TokenSource

__all__ = ["KeptIdentity", "NodeCredentials", "NotAPeer", "PeerTls", "TokenSource"]
