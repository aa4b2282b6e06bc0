"""The fleet for Envoy, by files that it watches: a listener, routes by model, and clusters.

    POST /v1/… {"model": "m", …} ─▶ json_to_metadata ─▶ route of m ─▶ one of its engines by weight

One cluster per engine, since each engine asks for a key of its own and only a weighted cluster
can add a header of its own. Routes have a file of their own: a listener that changed would end its
connections. Envoy is started with the bootstrap that lies beside: `envoy -c DIRECTORY/bootstrap.json`.
Source: https://www.envoyproxy.io/docs/envoy/latest/api-v3/
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio.to_thread

from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import ModelName
from llmgw.sinks.files import replace_file

Json = Mapping[str, object]

_TYPE = "type.googleapis.com/envoy"
_METADATA = "llmgw"
_ROUTES = "models"
#: Weights in the catalog are fractions, in Envoy they are whole numbers.
_WEIGHT_UNIT = 100
#: The whole body has to be read before the model is known; the router's own limit.
BODY_LIMIT_BYTES = 64 * 1024 * 1024


class EnvoyFiles:
    """Writes `bootstrap.json`, and the files that it names, into one folder."""

    name = "envoy"

    def __init__(self, directory: Path, *, listen: tuple[str, int]) -> None:
        """listen: where Envoy serves the API, IP and port."""
        self._directory = directory
        self._listen = listen

    async def publish(
        self, endpoints: tuple[Endpoint, ...], models: tuple[ModelStatus, ...]
    ) -> None:
        """Replace what differs. Raises TransientError if a file cannot be written."""
        await anyio.to_thread.run_sync(self._write, endpoints, models)

    def _write(self, endpoints: tuple[Endpoint, ...], models: tuple[ModelStatus, ...]) -> None:
        replace_file(self._directory / "bootstrap.json", _text(bootstrap(self._directory)))
        # New clusters before the routes that name them. Old ones go with the same write: Envoy
        # ends what is open on them before it drops them.
        replace_file(self._directory / "clusters.json", _text(clusters(endpoints)))
        replace_file(self._directory / "routes.json", _text(routes(endpoints, models)))
        listener = listeners(self._directory, listen=self._listen)
        replace_file(self._directory / "listeners.json", _text(listener))


def bootstrap(directory: Path) -> Json:
    """Return what Envoy is started with: where to watch for the rest."""
    return {
        "node": {"id": "llmgw", "cluster": "llmgw"},
        "dynamic_resources": {
            "cds_config": _watched(directory, "clusters.json"),
            "lds_config": _watched(directory, "listeners.json"),
        },
    }


def _watched(directory: Path, name: str) -> Json:
    return {
        "resource_api_version": "V3",
        "path_config_source": {
            "path": str(directory / name),
            "watched_directory": {"path": str(directory)},
        },
    }


def clusters(endpoints: Sequence[Endpoint]) -> Json:
    """Return one cluster per endpoint, draining ones included so that their streams can end."""
    return {"resources": [_cluster(item) for item in sorted(endpoints, key=lambda item: item.id)]}


def routes(endpoints: Sequence[Endpoint], models: Sequence[ModelStatus]) -> Json:
    """Return one route per name of a model."""
    every = {"name": "all", "domains": ["*"], "routes": _routes(endpoints, models)}
    kind = f"{_TYPE}.config.route.v3.RouteConfiguration"
    return {"resources": [{"@type": kind, "name": _ROUTES, "virtual_hosts": [every]}]}


def listeners(directory: Path, *, listen: tuple[str, int]) -> Json:
    """Return the listener and its filters, which never change."""
    manager = {
        "@type": f"{_TYPE}.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "llmgw",
        "stream_idle_timeout": "600s",
        "request_headers_timeout": "10s",
        "http_filters": [_model_filter(), _buffer_filter(), _router_filter()],
        "rds": {
            "route_config_name": _ROUTES,
            "config_source": _watched(directory, "routes.json"),
        },
    }
    address, port = listen
    return {
        "resources": [
            {
                "@type": f"{_TYPE}.config.listener.v3.Listener",
                "name": "llmgw",
                "address": {"socket_address": {"address": address, "port_value": port}},
                "per_connection_buffer_limit_bytes": BODY_LIMIT_BYTES,
                "filter_chains": [
                    {
                        "filters": [
                            {
                                "name": "envoy.filters.network.http_connection_manager",
                                "typed_config": manager,
                            }
                        ]
                    }
                ],
            }
        ]
    }


def _cluster(endpoint: Endpoint) -> Json:
    url = urlsplit(endpoint.url)
    port = url.port or (443 if url.scheme == "https" else 80)
    cluster: dict[str, object] = {
        "@type": f"{_TYPE}.config.cluster.v3.Cluster",
        "name": endpoint.id,
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "load_assignment": {
            "cluster_name": endpoint.id,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {
                            "endpoint": {
                                "address": {
                                    "socket_address": {
                                        "address": url.hostname or "",
                                        "port_value": port,
                                    }
                                }
                            }
                        }
                    ]
                }
            ],
        },
    }
    if url.scheme == "https":
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_TYPE}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": url.hostname or "",
            },
        }
    return cluster


def _routes(endpoints: Sequence[Endpoint], models: Sequence[ModelStatus]) -> list[Json]:
    serving: defaultdict[ModelName, list[Endpoint]] = defaultdict(list)
    for endpoint in sorted(endpoints, key=lambda item: item.id):
        if not endpoint.draining:
            serving[endpoint.models[0]].append(endpoint)
            for adapter, told in endpoint.adapters.items():
                if told == adapter:  # Envoy writes no other name into a request
                    serving[adapter].append(endpoint)
    found: list[Json] = [_listing(models)]
    for status in models:
        for name in status.names:
            match = {"prefix": "/v1/", "dynamic_metadata": [_asked_for(name)]}
            usable = serving.get(status.names[0])
            found.append(
                {"match": match, **(_balanced(usable) if usable else _unavailable(status))}
            )
    found.append(
        {
            "match": {"prefix": "/"},
            **_error(404, "model_not_found", "The model does not exist, or none was named."),
        }
    )
    return found


def _balanced(endpoints: Sequence[Endpoint]) -> Json:
    best = max(endpoint.priority for endpoint in endpoints)
    weighted = []
    for endpoint in endpoints:
        if endpoint.priority != best:
            continue
        choice: dict[str, object] = {
            "name": endpoint.id,
            "weight": max(1, round(endpoint.weight * _WEIGHT_UNIT)),
            # The client's key is the gateway's business; the engine has one of its own.
            "request_headers_to_remove": ["authorization"],
        }
        added = dict(endpoint.headers)
        if endpoint.credential is not None:
            added["authorization"] = f"Bearer {endpoint.credential.reveal()}"
        if added:
            choice["request_headers_to_add"] = [
                {
                    "header": {"key": key, "value": value},
                    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                }
                for key, value in sorted(added.items())
            ]
            if "authorization" in added:
                del choice["request_headers_to_remove"]
        weighted.append(choice)
    return {
        "route": {
            "weighted_clusters": {"clusters": weighted},
            "timeout": "0s",  # answers stream for minutes; the idle limit cuts dead ones
            "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 1},
        }
    }


def _unavailable(status: ModelStatus) -> Json:
    code = status.refusal.code if status.refusal else status.state.value
    sentence = {
        ModelState.ASLEEP: f"{status.names[0]} is asleep; Envoy does not wake models.",
        ModelState.WAKING: f"{status.names[0]} is on its way.",
    }.get(status.state, f"{status.names[0]} cannot run now.")
    return _error(503, code, status.refusal.sentence if status.refusal else sentence)


def _listing(models: Sequence[ModelStatus]) -> Json:
    listed = [
        {"id": name, "object": "model", "created": status.created, "owned_by": "llmgw"}
        for status in models
        for name in status.names
    ]
    body = json.dumps({"object": "list", "data": listed})
    return {
        "match": {"path": "/v1/models"},
        **_answer(200, body),
    }


def _error(status: int, code: str, message: str) -> Json:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return _answer(status, json.dumps({"error": error}))


def _answer(status: int, body: str) -> Json:
    return {
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }


def _asked_for(name: str) -> Json:
    return {
        "filter": _METADATA,
        "path": [{"key": "model"}],
        "value": {"string_match": {"exact": name}},
    }


def _model_filter() -> Json:
    """Read the body's top-level `model` into metadata, which routes then match."""
    return {
        "name": "envoy.filters.http.json_to_metadata",
        "typed_config": {
            "@type": f"{_TYPE}.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
            "request_rules": {
                "rules": [
                    {
                        "selectors": [{"key": "model"}],
                        "on_present": {
                            "metadata_namespace": _METADATA,
                            "key": "model",
                            "type": "STRING",
                        },
                        "on_missing": {
                            "metadata_namespace": _METADATA,
                            "key": "model",
                            "value": "",
                        },
                    }
                ]
            },
        },
    }


def _buffer_filter() -> Json:
    return {
        "name": "envoy.filters.http.buffer",
        "typed_config": {
            "@type": f"{_TYPE}.extensions.filters.http.buffer.v3.Buffer",
            "max_request_bytes": BODY_LIMIT_BYTES,
        },
    }


def _router_filter() -> Json:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_TYPE}.extensions.filters.http.router.v3.Router"},
    }


def _text(value: Json) -> str:
    return json.dumps(value, indent=1) + "\n"
