"""From a request's bytes to an envelope, or to the reason why not."""

from llmgw.router.ingress.ingress import Ingress
from llmgw.router.ingress.request import Request

__all__ = ["Ingress", "Request"]
