"""Sinks that come with the core: off unless their section says where to write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from llmgw import hookimpl
from llmgw.config.section import Section
from llmgw.contracts.sinks import Sink
from llmgw.sinks.envoy import EnvoyFiles
from llmgw.sinks.prometheus import PrometheusTargets


class PrometheusSection(Section):
    """Scrape targets for Prometheus, as `plugins.prometheus`."""

    path: Path | None = None
    """File for `file_sd_configs`; null: none is written."""


class EnvoySection(Section):
    """The fleet for Envoy, as `plugins.envoy`."""

    directory: Path | None = None
    """Folder of the files that Envoy watches; null: none are written. They hold engines' keys."""
    listen_address: str = "127.0.0.1"
    """Address at which Envoy serves the API."""
    listen_port: int = 10000
    """And its port."""


@hookimpl
def llmgw_settings_sections() -> Mapping[str, type[Section]]:
    """Say where to write."""
    return {"prometheus": PrometheusSection, "envoy": EnvoySection}


@hookimpl
def llmgw_sinks(settings: Mapping[str, object]) -> Iterable[Sink]:
    """Hand over those that are configured."""
    found: list[Sink] = []
    prometheus, envoy = settings.get("prometheus"), settings.get("envoy")
    if isinstance(prometheus, PrometheusSection) and prometheus.path is not None:
        found.append(PrometheusTargets(prometheus.path))
    if isinstance(envoy, EnvoySection) and envoy.directory is not None:
        listen = (envoy.listen_address, envoy.listen_port)
        found.append(EnvoyFiles(envoy.directory.resolve(), listen=listen))
    return found
