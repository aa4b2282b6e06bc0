"""What Prometheus and Envoy are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, ModelName, NodeId, ReplicaId
from llmgw.domain.plans import Refusal
from llmgw.domain.secret import Secret
from llmgw.sinks.builtins import EnvoySection, PrometheusSection, llmgw_sinks
from llmgw.sinks.envoy import EnvoyFiles, clusters
from llmgw.sinks.envoy import routes as envoy_routes
from llmgw.sinks.prometheus import targets

M, ALIAS, N = ModelName("m"), ModelName("alias"), ModelName("n")


def endpoint(name: str, **changes: Any) -> Endpoint:
    fields: dict[str, Any] = {
        "id": EndpointId(name),
        "url": "http://10.0.0.1:20000",
        "models": (M, ALIAS),
        "engine": "vllm",
        "metrics_path": "/metrics",
        "replica": ReplicaId(name),
        "node": NodeId("n1"),
        "credential": Secret("engine-key"),
    }
    return Endpoint(**(fields | changes))


SERVING = ModelStatus(names=(M, ALIAS), state=ModelState.SERVING)


def test_each_engine_with_a_metrics_page_is_a_target_and_no_secret_is_told() -> None:
    text = targets(
        (
            endpoint("r2", url="http://[fd00::5]:20001/base"),
            endpoint("r1"),
            endpoint("r3", metrics_path=None),
        )
    )
    first, second = json.loads(text)
    assert first["targets"] == ["10.0.0.1:20000"]
    assert first["labels"]["model"] == "m"
    assert second["targets"] == ["[fd00::5]:20001"]
    assert second["labels"]["__metrics_path__"] == "/base/metrics"
    assert "engine-key" not in text


def routes(endpoints: tuple[Endpoint, ...], *models: ModelStatus) -> dict[str, Any]:
    """Return Envoy's routes by the model that they match."""
    (configuration,) = cast(Any, envoy_routes(endpoints, models)["resources"])
    found = {}
    for route in configuration["virtual_hosts"][0]["routes"]:
        asked = route["match"].get("dynamic_metadata")
        key = asked[0]["value"]["string_match"]["exact"] if asked else str(route["match"])
        found[key] = route
    return found


def test_envoy_shares_a_model_s_requests_by_weight_among_the_best_priority() -> None:
    found = routes(
        (
            endpoint("r1", weight=1.0, priority=5),
            endpoint("r2", weight=0.25, priority=5),
            endpoint("r3", priority=1),
            endpoint("r4", priority=9, draining=True),
        ),
        SERVING,
    )
    for name in ("m", "alias"):
        choices = found[name]["route"]["weighted_clusters"]["clusters"]
        assert [(item["name"], item["weight"]) for item in choices] == [("r1", 100), ("r2", 25)]
    (header,) = choices[0]["request_headers_to_add"]
    assert header["header"] == {"key": "authorization", "value": "Bearer engine-key"}


def test_a_client_s_key_never_reaches_an_engine() -> None:
    (choice,) = routes((endpoint("r1", credential=None),), SERVING)["m"]["route"][
        "weighted_clusters"
    ]["clusters"]
    assert choice["request_headers_to_remove"] == ["authorization"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ModelStatus(names=(N,), state=ModelState.ASLEEP), "asleep"),
        (
            ModelStatus(
                names=(N,),
                state=ModelState.UNPLACEABLE,
                refusal=Refusal(code="unplaced", sentence="n cannot run now"),
            ),
            "unplaced",
        ),
    ],
)
def test_a_model_without_an_engine_is_answered_with_its_reason(
    status: ModelStatus, code: str
) -> None:
    answer = routes((), status)["n"]["direct_response"]
    assert answer["status"] == 503
    assert json.loads(answer["body"]["inline_string"])["error"]["code"] == code


def test_a_draining_engine_keeps_its_cluster_so_that_streams_can_end() -> None:
    resources: Any = clusters((endpoint("r1", draining=True),))["resources"]
    assert [item["name"] for item in resources] == ["r1"]


def test_envoy_s_files_are_all_there_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    sink = EnvoyFiles(tmp_path, listen=("127.0.0.1", 10000))
    anyio.run(sink.publish, (endpoint("r1"),), (SERVING,))
    names = {"bootstrap.json", "clusters.json", "listeners.json", "routes.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        json.loads((tmp_path / name).read_text())
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_a_sink_is_there_only_if_it_was_told_where_to_write(tmp_path: Path) -> None:
    assert list(llmgw_sinks({"envoy": EnvoySection(), "prometheus": PrometheusSection()})) == []
    sections = {
        "envoy": EnvoySection(directory=tmp_path),
        "prometheus": PrometheusSection(path=tmp_path / "targets.json"),
    }
    assert [sink.name for sink in llmgw_sinks(sections)] == ["prometheus", "envoy"]
