"""Engines as scrape targets, for Prometheus' file service discovery."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import anyio.to_thread

from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.sinks.files import replace_file


class PrometheusTargets:
    """Writes one JSON file that a `file_sd_configs` entry names."""

    name = "prometheus"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def publish(
        self,
        endpoints: tuple[Endpoint, ...],
        models: tuple[ModelStatus, ...],  # noqa: ARG002 - a model without an engine has no metrics
    ) -> None:
        """Replace the file if it differs. Raises TransientError if it cannot be written."""
        await anyio.to_thread.run_sync(replace_file, self._path, targets(endpoints))


def targets(endpoints: tuple[Endpoint, ...]) -> str:
    """Return the file: one target per engine that has a metrics page, no secrets in it.

    Source: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
    """
    groups = []
    for endpoint in sorted(endpoints, key=lambda item: item.id):
        if endpoint.metrics_path is None:
            continue
        url = urlsplit(endpoint.url)
        labels = {
            "__scheme__": url.scheme,
            "__metrics_path__": url.path.rstrip("/") + endpoint.metrics_path,
            "model": endpoint.models[0],
            "engine": endpoint.engine,
            "pool": endpoint.pool,
            "replica": endpoint.replica or endpoint.id,
        }
        if endpoint.node is not None:
            labels["node"] = endpoint.node
        groups.append({"targets": [url.netloc], "labels": labels})
    return json.dumps(groups, indent=1) + "\n"
