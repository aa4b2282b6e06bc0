"""The fleet in numbers, for the metrics page: read when it is scraped, counted nowhere before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw.control.view import FleetView
from llmgw.domain.endpoints import ModelState
from llmgw.domain.nodes import DeviceHealth, NodeState
from llmgw.domain.replicas import ReplicaState


class FleetCollector(Collector):
    """Register it with the admin listener's registry.

    Every state is always present, so that an alert on one does not depend on its having
    occurred. Series are per model and node, of which the catalog and the fleet bound the number.
    """

    def __init__(self, view: FleetView) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Return nothing: describing must not look at a fleet that is not there yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return one reading."""
        standing = self._view.standing()
        yield _gauge("llmgw_control_leading", "Whether this server leads", standing.leading)
        yield _gauge("llmgw_control_epoch", "Epoch of the leadership in force", standing.epoch)
        yield _gauge(
            "llmgw_control_settled", "Whether the fleet has reported enough", standing.settled
        )
        yield _gauge(
            "llmgw_control_mass_loss_brake", "Whether the mass-loss brake holds", standing.braked
        )
        yield _gauge("llmgw_control_pass_seconds", "Length of the last pass", standing.last_pass_s)
        yield from self._nodes()
        yield from self._models()

    def _nodes(self) -> Iterable[Metric]:
        nodes = self._view.nodes()
        states = Counter(node.record.state for node in nodes)
        by_state = GaugeMetricFamily("llmgw_nodes", "Nodes by state", labels=["state"])
        for state in NodeState:
            by_state.add_metric([state], states[state])
        yield by_state
        devices = GaugeMetricFamily("llmgw_devices", "Devices by node", labels=["node", "use"])
        for node in nodes:
            if node.record.inventory is None:
                continue
            counts: Counter[str] = Counter()
            for device in node.record.inventory.devices:
                if device.health is not DeviceHealth.OK:
                    counts["failed"] += 1
                else:
                    counts["booked" if device.id in node.booked else "free"] += 1
            for use in ("free", "booked", "failed"):
                devices.add_metric([node.record.id, use], counts[use])
        yield devices

    def _models(self) -> Iterable[Metric]:
        replicas = GaugeMetricFamily(
            "llmgw_replicas", "Replicas by model and state", labels=["model", "state"]
        )
        states = GaugeMetricFamily(
            "llmgw_model_state", "1 for the state that a model is in", labels=["model", "state"]
        )
        restarts = GaugeMetricFamily(
            "llmgw_replica_restarts", "Restarts of a model's present replicas", labels=["model"]
        )
        for item in self._view.models():
            counts = Counter(replica.state for replica in item.replicas)
            for state in ReplicaState:
                replicas.add_metric([item.model.name, state], counts[state])
            for model_state in ModelState:
                states.add_metric([item.model.name, model_state], item.status.state is model_state)
            shards = (shard for replica in item.replicas for shard in replica.shards)
            restarts.add_metric([item.model.name], sum(shard.restarts for shard in shards))
        yield from (replicas, states, restarts)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
