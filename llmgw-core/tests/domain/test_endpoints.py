"""What a router is told of an endpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llmgw.domain.endpoints import Endpoint
from llmgw.domain.ids import EndpointId, ModelName
from llmgw.domain.roles import Role
from llmgw.domain.secret import Secret

KNOWN = Endpoint(id=EndpointId("e"), url="http://10.0.0.7:8000", models=(ModelName("m"),))
OTHER: dict[str, Any] = {
    "id": "e2",
    "url": "http://10.0.0.8:8000",
    "models": ("m", "alias"),
    "engine": "vllm",
    "pool": "chat",
    "weight": 0.5,
    "priority": 7,
    "incarnation": "2",
    "credential": Secret("key"),
    "headers": {"x-team": "a"},
    "health_path": None,
    "metrics_path": "/metrics",
    "max_inflight": 4,
    "served_name": "n",
    "cancels_plain_requests": False,
    "node": "n1",
    "replica": "r1",
    "draining": True,
    "adapters": {"sql": "sql"},
    "role": Role.DECODE,
    "meeting_port": 8998,
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Endpoint)])
def test_a_change_of_any_field_makes_another_endpoint(name: str) -> None:
    """Lists are compared before they are passed on: a field that did not count would be lost."""
    assert dataclasses.replace(KNOWN, **{name: OTHER[name]}) != KNOWN
