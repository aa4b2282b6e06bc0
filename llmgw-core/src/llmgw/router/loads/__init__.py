"""The router's own look at engines: do they answer, how busy are they, do they get on."""

from llmgw.router.loads.poller import LoadPoller

__all__ = ["LoadPoller"]
