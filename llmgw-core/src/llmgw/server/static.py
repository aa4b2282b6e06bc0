"""Endpoints from the configuration, joined with those of the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llmgw.config.server import StaticEndpoint
from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.sinks import EndpointSink
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName
from llmgw.domain.secret import Secret
from llmgw.errors import ConfigError, Problem


class EndpointsOfBoth:
    """An endpoint sink that adds the static endpoints to each list of the fleet."""

    def __init__(self, sinks: Sequence[EndpointSink], static: tuple[Endpoint, ...]) -> None:
        self._sinks = sinks
        self._static = static
        self._fleet: tuple[Endpoint, ...] = ()
        self._epoch = Epoch(0)

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        """Replace the fleet's part."""
        self._fleet, self._epoch = endpoints, epoch
        self.publish()

    def set_static(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Replace the configuration's part."""
        self._static = endpoints
        self.publish()

    def publish(self) -> None:
        """Hand the whole list on, as at the start when only the configuration's part is there."""
        for sink in self._sinks:
            sink.publish_endpoints((*self._static, *self._fleet), self._epoch)


def static_endpoints(
    settings: Iterable[StaticEndpoint], engines: Mapping[str, EngineAdapter]
) -> tuple[Endpoint, ...]:
    """Return configured endpoints as routers see them, with what their engine's adapter knows.

    Raises ConfigError for a key file that cannot be read.
    """
    return tuple(_endpoint(index, one, engines) for index, one in enumerate(settings))


def _endpoint(index: int, said: StaticEndpoint, engines: Mapping[str, EngineAdapter]) -> Endpoint:
    adapter = engines.get(said.engine)
    traits = adapter.traits if adapter else None
    return Endpoint(
        id=EndpointId(said.id),
        url=said.url,
        models=tuple(ModelName(name) for name in said.models),
        engine=said.engine,
        pool=said.pool,
        weight=said.weight,
        priority=said.priority,
        credential=_credential(index, said),
        headers=dict(said.headers),
        health_path=said.health_path,
        metrics_path=traits.metrics_path if traits else None,
        max_inflight=said.max_inflight,
        cancels_plain_requests=traits.cancels_plain_requests if traits else True,
        role=said.role,
        meeting_port=said.meeting_port,
    )


def _credential(index: int, said: StaticEndpoint) -> Secret | None:
    if said.api_key_file is None:
        return None
    try:
        key = said.api_key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(index, f"{said.api_key_file} cannot be read") from error
    if not key:
        raise _refusal(index, f"{said.api_key_file} is empty")
    if not (key.isascii() and key.isprintable()):
        raise _refusal(index, f"{said.api_key_file} holds more than one line, or no plain ASCII")
    return Secret(key)


def _refusal(index: int, message: str) -> ConfigError:
    return ConfigError(
        "settings", [Problem(path=f"endpoints[{index}].api_key_file", message=message)]
    )
