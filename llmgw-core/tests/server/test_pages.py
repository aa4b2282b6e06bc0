"""Metrics pages of several processes become one that a scraper accepts."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from llmgw.server.pages import own_page, summed_pages

ONE = b"""# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{model="a b"} 2
# TYPE duration_seconds histogram
duration_seconds_bucket{le="+Inf"} 3
duration_seconds_sum 0.5
duration_seconds_count 3
# TYPE in_flight gauge
in_flight 1
"""
OTHER = b"""# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{model="a b"} 5
requests_total{model="c"} 1
# TYPE duration_seconds histogram
duration_seconds_bucket{le="+Inf"} 1
duration_seconds_sum 0.25
duration_seconds_count 1
"""


def test_series_are_summed_and_keep_to_their_families() -> None:
    page = summed_pages([ONE, OTHER]).decode()
    assert page.splitlines() == [
        "# HELP requests_total Requests.",
        "# TYPE requests_total counter",
        'requests_total{model="a b"} 7',
        'requests_total{model="c"} 1',
        "# TYPE duration_seconds histogram",
        'duration_seconds_bucket{le="+Inf"} 4',
        "duration_seconds_sum 0.75",
        "duration_seconds_count 4",
        "# TYPE in_flight gauge",
        "in_flight 1",
    ]


def test_what_comes_out_can_be_read_by_prometheus() -> None:
    page = summed_pages([own_page(reload_failed=True), ONE, OTHER]).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["llmgw_config_reload_failed"].samples[0].value == 1.0
    assert [sample.value for sample in families["requests"].samples] == [7.0, 1.0]


def test_no_page_is_an_empty_page() -> None:
    assert summed_pages([]) == b""
