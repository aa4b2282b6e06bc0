"""Endpoints of the configuration as routers see them."""

from __future__ import annotations

from llmgw.config.endpoint_flag import parse_endpoint
from llmgw.config.server import StaticEndpoint
from llmgw.server.static import static_endpoints


def test_an_endpoint_of_the_command_line_has_its_own_pool_and_no_slash_at_its_end() -> None:
    said = StaticEndpoint.model_validate(parse_endpoint("e1=http://127.0.0.1:8000/=m,alias"))
    (endpoint,) = static_endpoints([said], {})
    assert endpoint.url == "http://127.0.0.1:8000"
    assert (endpoint.pool, endpoint.weight) == ("static", 1.0)
    assert endpoint.models == ("m", "alias")
