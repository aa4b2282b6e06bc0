"""The fleet in numbers, for the metrics page: read when it is scraped, counted nowhere before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import anyio.lowlevel
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw.control.decide.snapshot import ClusterSnapshot
from llmgw.control.view import FleetView, ModelView, NodeView, Standing
from llmgw.domain.endpoints import ModelState
from llmgw.domain.loads import EngineLoad
from llmgw.domain.nodes import Device, DeviceHealth, NodeState
from llmgw.domain.replicas import ReplicaState

_BYTES_PER_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """The fleet at one moment; of a large one each part at a moment of its own."""

    standing: Standing
    snapshot: ClusterSnapshot
    nodes: tuple[NodeView, ...]
    models: tuple[ModelView, ...]


async def read_fleet(view: FleetView) -> FleetReading:
    """Look at the fleet, without holding up the loop by all of a large one at once."""
    nodes = view.nodes()
    await anyio.lowlevel.checkpoint()
    models = view.models()
    await anyio.lowlevel.checkpoint()
    return FleetReading(
        standing=view.standing(), snapshot=view.snapshot(), nodes=nodes, models=models
    )


class FleetCollector(Collector):
    """One reading as metrics; may be asked on any thread.

    Every state is always present, so that an alert on one does not depend on its having
    occurred; a figure that nobody knows is absent. Series are per model and node, of which the
    catalog and the fleet bound the number.
    """

    def __init__(self, reading: FleetReading) -> None:
        self._reading = reading

    def collect(self) -> Iterable[Metric]:
        """Return all series."""
        yield from _control_metrics(self._reading.standing)
        yield from _node_metrics(self._reading.nodes)
        yield from _device_metrics(self._reading.nodes)
        yield from _model_metrics(self._reading.models)
        yield from _engine_metrics(self._reading.snapshot)


def _control_metrics(standing: Standing) -> Iterator[Metric]:
    yield _one("llmgw_control_leading", "Whether this server leads.", standing.leading)
    yield _one("llmgw_control_epoch", "Epoch of the leadership in force.", standing.epoch)
    yield _one(
        "llmgw_control_settled", "Whether enough of the fleet has reported.", standing.settled
    )
    yield _one(
        "llmgw_control_mass_loss_brake",
        "Whether too many nodes fell silent at once for any to be taken for lost.",
        standing.braked,
    )
    yield _one("llmgw_control_pass_seconds", "Length of the newest planning.", standing.last_pass_s)
    yield CounterMetricFamily(
        "llmgw_control_passes", "Plannings since the start.", value=standing.passes
    )
    yield CounterMetricFamily(
        "llmgw_control_failed_passes",
        "Plannings that a mistake in the program has ended; its log has the traceback.",
        value=standing.failed,
    )


def _engine_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    requests = GaugeMetricFamily(
        "llmgw_engine_requests",
        "Requests that engines say they compute or queue, by model, whatever sent them.",
        labels=["model", "state"],
    )
    cache = GaugeMetricFamily(
        "llmgw_engine_kv_cache_used_ratio",
        "Part of the KV cache in use, of the model's fullest engine.",
        labels=["model"],
    )
    for model, loads in _loads(snapshot).items():
        for state in ("running", "waiting"):
            counts = [getattr(load, state) for load in loads]
            if known := [count for count in counts if count is not None]:
                requests.add_metric([model, state], sum(known))
        if used := [load.kv_used for load in loads if load.kv_used is not None]:
            cache.add_metric([model], max(used))
    yield from (requests, cache)


def _loads(snapshot: ClusterSnapshot) -> dict[str, list[EngineLoad]]:
    by_model: dict[str, list[EngineLoad]] = {}
    for record in snapshot.replicas:
        for _, spec in record.shards:
            if (load := snapshot.loads.get(spec.id)) is not None:
                by_model.setdefault(record.replica.model, []).append(load)
    return by_model


def _node_metrics(nodes: tuple[NodeView, ...]) -> Iterator[Metric]:
    states = Counter(node.record.state for node in nodes)
    by_state = GaugeMetricFamily("llmgw_nodes", "Nodes by state.", labels=["state"])
    for state in NodeState:
        by_state.add_metric([state], states[state])
    silent = GaugeMetricFamily(
        "llmgw_node_silent_seconds", "Since the node was last heard of.", labels=["node"]
    )
    for node in nodes:
        silent.add_metric([node.record.id], node.silent_s)
    yield from (by_state, silent)


def _device_metrics(nodes: tuple[NodeView, ...]) -> Iterator[Metric]:
    """Sums by node: a series per device is the business of the vendor's own exporter."""
    counts = GaugeMetricFamily(
        "llmgw_devices", "Devices by node, and what they do.", labels=["node", "use"]
    )
    memory = GaugeMetricFamily(
        "llmgw_device_memory_bytes", "Memory of the node's devices.", labels=["node"]
    )
    used = GaugeMetricFamily(
        "llmgw_device_memory_used_bytes",
        "Memory in use on the node's devices, whoever uses it.",
        labels=["node"],
    )
    busy = GaugeMetricFamily(
        "llmgw_device_utilization_ratio",
        "How busy the node's devices are, on average.",
        labels=["node"],
    )
    for node in nodes:
        if node.record.inventory is None:
            continue
        devices = node.record.inventory.devices
        uses = Counter(_use(device, node) for device in devices)
        for use in ("free", "booked", "failed"):
            counts.add_metric([node.record.id, use], uses[use])
        for family, figures in (
            (memory, [device.memory_mib for device in devices]),
            (used, [device.memory_used_mib for device in devices]),
        ):
            if known := [figure for figure in figures if figure is not None]:
                family.add_metric([node.record.id], sum(known) * _BYTES_PER_MIB)
        if shares := [item.utilisation for item in devices if item.utilisation is not None]:
            busy.add_metric([node.record.id], sum(shares) / len(shares))
    yield from (counts, memory, used, busy)


def _use(device: Device, node: NodeView) -> str:
    if device.health is not DeviceHealth.OK:
        return "failed"
    return "booked" if device.id in node.booked else "free"


def _model_metrics(models: tuple[ModelView, ...]) -> Iterator[Metric]:
    replicas = GaugeMetricFamily(
        "llmgw_replicas", "Replicas by model and state.", labels=["model", "state"]
    )
    wanted = GaugeMetricFamily(
        "llmgw_replicas_min", "Replicas that the catalog wants at least.", labels=["model"]
    )
    states = GaugeMetricFamily(
        "llmgw_model_state", "1 for the state that a model is in.", labels=["model", "state"]
    )
    restarts = GaugeMetricFamily(
        "llmgw_replica_restarts", "Restarts of a model's present replicas.", labels=["model"]
    )
    for item in models:
        name = item.model.name
        counts = Counter(replica.state for replica in item.replicas)
        for state in ReplicaState:
            replicas.add_metric([name, state], counts[state])
        least = sum(scale.min for scale in item.model.scales)
        wanted.add_metric([name], least if item.model.profiles else 0)
        for model_state in ModelState:
            states.add_metric([name, model_state], item.status.state is model_state)
        shards = (shard for replica in item.replicas for shard in replica.shards)
        restarts.add_metric([name], sum(shard.restarts for shard in shards))
    yield from (replicas, wanted, states, restarts)


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
