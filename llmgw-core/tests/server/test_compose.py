"""What a server is made of, decided by its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmgw.config.loading import Loaded, load_server
from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, Epoch, ModelName, ReplicaId
from llmgw.errors import ConfigError
from llmgw.server.compose import models_by_file, needs_store
from llmgw.server.standalone import keys_are_open, warn_of_exposure
from llmgw.server.static import EndpointsOfBoth, static_endpoints
from llmgw.testing.cluster import registry_of_fakes

ENDPOINT = {"id": "e1", "url": "http://127.0.0.1:9", "models": ["m"]}
TLS = {"certificate": __file__, "key": __file__}


def loaded(**settings: Any) -> Loaded:
    return load_server(None, {"HOME": "/h"}, {"endpoints": [ENDPOINT], **settings})


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({}, True),
        ({"listen": "[::1]:80"}, True),
        ({"listen": "0.0.0.0:80", "tls": TLS}, False),
        ({"listen": "0.0.0.0:80", "auth": {"insecure_bind": True}}, True),
        ({"auth": {"api_keys": "on"}}, False),
        ({"listen": "0.0.0.0:80", "auth": {"insecure_bind": True, "api_keys": "on"}}, False),
    ],
)
def test_keys_are_asked_for_wherever_other_machines_come(
    settings: dict[str, Any], is_open: bool
) -> None:
    assert keys_are_open(loaded(**settings).settings) is is_open


def test_what_an_insecure_bind_opens_is_said_at_each_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_exposure(loaded(auth={"insecure_bind": True}).settings)
    assert caplog.messages == []
    warn_of_exposure(loaded(auth={"insecure_bind": True}, listen="0.0.0.0:80").settings)
    assert caplog.messages == ["listening beyond this machine without TLS"]
    assert caplog.records[0].__dict__["fields"]["keys"] == "not asked for"


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, False),
        ({"store": {"url": "sqlite:////s/x.db"}}, True),
        ({"auth": {"api_keys": "on"}}, True),
        ({"control": {"enabled": "on"}}, True),
        ({"models": [{"name": "a", "profiles": [{"engine": "fake", "weights": "path:/w"}]}]}, True),
    ],
)
def test_a_store_is_opened_only_where_something_needs_it(
    settings: dict[str, Any], needed: bool
) -> None:
    assert needs_store(loaded(**settings)) is needed


def test_a_static_endpoint_has_what_its_adapter_knows_and_its_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" secret \n")
    settings = loaded(
        endpoints=[{**ENDPOINT, "engine": "fake", "api_key_file": str(tmp_path / "key")}]
    ).settings
    (endpoint,) = static_endpoints(settings.endpoints, registry_of_fakes().engines)
    assert endpoint.metrics_path == "/metrics"
    assert endpoint.credential is not None
    assert endpoint.credential.reveal() == "secret"
    assert endpoint.pool == "static"


def test_an_empty_key_file_never_means_that_no_key_is_needed(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    settings = loaded(endpoints=[{**ENDPOINT, "api_key_file": str(tmp_path / "key")}]).settings
    with pytest.raises(ConfigError, match=r"endpoints\[0\].api_key_file: .* is empty"):
        static_endpoints(settings.endpoints, {})


@pytest.mark.parametrize("key", ["secret\r\nhost: other", "secret é"])
def test_a_key_that_would_end_a_head_is_refused_and_not_shown(tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text(key, newline="")
    settings = loaded(endpoints=[{**ENDPOINT, "api_key_file": str(tmp_path / "key")}]).settings
    with pytest.raises(ConfigError, match="holds more than one line, or no plain ASCII") as raised:
        static_endpoints(settings.endpoints, {})
    assert "secret" not in str(raised.value)


class Published:
    """Keeps what it was told last."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.epoch = Epoch(-1)

    def publish_endpoints(self, endpoints: tuple[Endpoint, ...], epoch: Epoch) -> None:
        self.ids = [str(endpoint.id) for endpoint in endpoints]
        self.epoch = epoch


def endpoint(name: str) -> Endpoint:
    return Endpoint(
        id=EndpointId(name), url="http://x", models=(ModelName("m"),), replica=ReplicaId(name)
    )


def test_static_endpoints_and_the_fleets_reach_every_sink_together() -> None:
    one, other = Published(), Published()
    both = EndpointsOfBoth([one, other], (endpoint("s1"),))
    both.publish()
    assert (one.ids, one.epoch) == (["s1"], 0)
    both.publish_endpoints((endpoint("f1"),), Epoch(7))
    both.set_static((endpoint("s2"),))
    assert (one.ids, one.epoch) == (["s2", "f1"], 7)
    assert other.ids == one.ids


def test_models_are_told_apart_by_the_file_that_owns_them(tmp_path: Path) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "a.yaml").write_text("name: a\n")
    (tmp_path / "catalog" / "b.yaml").write_text("models: [{name: b}, {name: c}]\n")
    files = models_by_file(loaded(catalog_dir=str(tmp_path / "catalog")))
    assert {name: [str(model.name) for model in told] for name, told in files.items()} == {
        "a.yaml": ["a"],
        "b.yaml": ["b", "c"],
    }
