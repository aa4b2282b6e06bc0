"""One request's life between the two sockets."""

from llmgw.router.forward.client import Client
from llmgw.router.forward.envelope import Envelope
from llmgw.router.forward.exchange import Exchange
from llmgw.router.forward.parts import Ending, ForwardParts

__all__ = ["Client", "Ending", "Envelope", "Exchange", "ForwardParts"]
