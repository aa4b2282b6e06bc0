"""What all requests for one model to one endpoint have in common, worked out once."""

from __future__ import annotations

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId
from llmgw.router.forward.answers import Renaming
from llmgw.router.forward.envelope import Envelope
from llmgw.router.forward.heads import origin_headers, served_name, start_of_head
from llmgw.router.metrics import RouterMetrics
from llmgw.router.routes import Assembly


class Leg:
    """One route to one endpoint, under one of the model's names."""

    __slots__ = ("assembly", "endpoint", "head", "origin", "renaming", "series", "served")

    def __init__(self, endpoint: Endpoint, envelope: Envelope, metrics: RouterMetrics) -> None:
        route, model = envelope.route, envelope.target.name
        self.endpoint = endpoint
        self.head = start_of_head(endpoint, route.engine_path)
        self.origin = origin_headers(model, endpoint)
        self.series = metrics.series(model, endpoint.id, endpoint.role or "")
        self.served = served_name(endpoint, envelope.model)
        # Engines take every alias, and answer with the first name whatever was asked.
        told: str = endpoint.served_name or endpoint.models[0]
        if envelope.model in endpoint.adapters:
            told = self.served
        self.renaming = Renaming(told, envelope.model) if told != envelope.model else None
        self.assembly: Assembly | None = None
        """How a stream becomes the plain answer asked for, where only streams can be cut."""
        if not endpoint.cancels_plain_requests:
            self.assembly = route.assembly


class Legs:
    """Every leg that was asked for since the last table."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._legs: dict[tuple[EndpointId, str, str], Leg] = {}

    def find(self, endpoint: Endpoint, envelope: Envelope) -> Leg:
        """Return the leg of this request. There are as many as the table has names, at most."""
        key = (endpoint.id, envelope.route.path, envelope.model)
        leg = self._legs.get(key)
        if leg is None or leg.endpoint is not endpoint:
            leg = self._legs[key] = Leg(endpoint, envelope, self._metrics)
        return leg

    def clear(self) -> None:
        """Forget all of them: there is a new table."""
        self._legs.clear()
