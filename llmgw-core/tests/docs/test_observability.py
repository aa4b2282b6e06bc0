"""Alerts fire when they should, dashboards ask for what there is, and Prometheus' tool agrees.

`promtool` comes with Debian's package `prometheus`; `nox -s observability` insists on it.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parents[3] / "docs"
ALERTS = DOCS / "observability" / "alerts.yml"
DASHBOARDS = sorted((DOCS / "observability").glob("*.json"))
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]

REQUESTS = 'llmgw_requests_total{model="m", endpoint="e", outcome="ok"}'
#: Series that make each alert fire: name and values, one a minute.
CASES = {
    "LlmgwDown": ['up{job="llmgw"} 0x60'],
    "LlmgwNoLeader": ['llmgw_control_leading{instance="a"} 0x60'],
    "LlmgwMassLossBrake": ["llmgw_control_mass_loss_brake 1x60"],
    "LlmgwPlanningFails": ['llmgw_control_failed_passes_total{instance="a"} 0+10x60'],
    "LlmgwNodeLost": ['llmgw_nodes{state="lost"} 1x60'],
    "LlmgwNodeSilent": ['llmgw_node_silent_seconds{node="n"} 0+60x60'],
    "LlmgwDeviceFailed": ['llmgw_devices{node="n", use="failed"} 1x60'],
    "LlmgwModelUnplaceable": ['llmgw_model_state{model="m", state="unplaceable"} 1x60'],
    "LlmgwReplicasMissing": [
        'llmgw_replicas{model="m", state="ready"} 1x60',
        'llmgw_replicas_min{model="m"} 2x60',
    ],
    "LlmgwReplicaRestarts": ['llmgw_replica_restarts{model="m"} 0+1x60'],
    "LlmgwReplicaUnkillable": ['llmgw_replicas{model="m", state="unkillable"} 1x60'],
    "LlmgwConfigReloadFailed": ['llmgw_config_reload_failed{instance="a"} 1x60'],
    "LlmgwFeedStale": ['llmgw_feed_stale{instance="a"} 1x60'],
    "LlmgwEngineErrors": [
        f"{REQUESTS} 0+90x60",
        'llmgw_requests_total{model="m", endpoint="e", outcome="reset"} 0+10x60',
    ],
    "LlmgwRefusals": ['llmgw_refused_requests_total{model="m", status="503"} 0+10x60'],
    "LlmgwRetries": [
        f"{REQUESTS} 0+50x60",
        'llmgw_retries_total{model="m", endpoint="e"} 0+10x60',
    ],
    "LlmgwFirstTokenSlow": [
        'gen_ai_server_time_to_first_token_seconds_bucket{model="m", le="10"} 0x60',
        'gen_ai_server_time_to_first_token_seconds_bucket{model="m", le="30"} 0+10x60',
        'gen_ai_server_time_to_first_token_seconds_bucket{model="m", le="+Inf"} 0+10x60',
    ],
    "LlmgwQueueLong": ['llmgw_queued_requests{instance="a"} 200x60'],
    "LlmgwCacheFull": ['llmgw_engine_kv_cache_used_ratio{model="m"} 0.99x60'],
    "LlmgwConnectionsRefused": ["llmgw_refused_connections_total 0+5x60"],
    "LlmgwAccessRecordsDropped": ["llmgw_dropped_access_records_total 0+5x60"],
    "LlmgwPlanningSlow": ['llmgw_control_pass_seconds{instance="a"} 3x60'],
}
#: All is well: no alert may fire on these.
WELL = [
    'up{job="llmgw"} 1x60',
    'llmgw_control_leading{instance="a"} 1x60',
    'llmgw_control_leading{instance="b"} 0x60',
    "llmgw_control_mass_loss_brake 0x60",
    'llmgw_control_failed_passes_total{instance="a"} 1x60',
    'llmgw_nodes{state="lost"} 0x60',
    'llmgw_node_silent_seconds{node="n"} 3x60',
    'llmgw_model_state{model="m", state="unplaceable"} 0x60',
    'llmgw_replicas{model="m", state="ready"} 2x60',
    'llmgw_replicas_min{model="m"} 2x60',
    'llmgw_replica_restarts{model="m"} 1x60',
    f"{REQUESTS} 0+90x60",
    'llmgw_refused_requests_total{model="m", status="429"} 0+1x60',
    "llmgw_refused_connections_total 0x60",
]


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        assert "LLMGW_NEEDS_PROMTOOL" not in os.environ, "promtool is not installed"
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def told(*command: str, stdin: str | None = None) -> None:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def metric_names() -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", (DOCS / "metrics.md").read_text(), re.MULTILINE))


def expressions() -> dict[str, str]:
    """Every query of alerts and dashboards, by where it stands."""
    found = {rule["alert"]: rule["expr"] for rule in RULES}
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text())["panels"]:
            for target in panel.get("targets", ()):
                found[f"{dashboard.stem}: {panel['title']}, {target['refId']}"] = target["expr"]
    return found


def test_every_query_asks_for_metrics_that_there_are() -> None:
    known = metric_names()
    for place, query in expressions().items():
        for name in re.findall(r"\b(?:llmgw|gen_ai_server|gen_ai_client)_\w+", query):
            assert re.sub(r"_(bucket|count|sum)$", "", name) in known, (place, name)


def test_every_alert_is_tried() -> None:
    assert list(CASES) == [rule["alert"] for rule in RULES]


def test_the_rules_and_all_queries_are_sound(promtool: str, tmp_path: Path) -> None:
    told(promtool, "check", "rules", str(ALERTS))
    queries = [
        {"record": f"q{index}", "expr": query.replace("$__rate_interval", "5m")}
        for index, query in enumerate(expressions().values())
    ]
    assert len(queries) > len(RULES)
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": queries}]}))
    told(promtool, "check", "rules", "--lint=none", str(file))


def test_each_alert_fires_on_its_case_and_none_when_all_is_well(
    promtool: str, tmp_path: Path
) -> None:
    tests = [_case(series, f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})', 1)
             for alert, series in CASES.items()]  # fmt: skip
    tests.append(_case(WELL, 'count(ALERTS{alertstate="firing"}) or vector(0)', 0))
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    told(promtool, "test", "rules", str(file))


def _case(series: list[str], expression: str, value: int) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [
            dict(zip(("series", "values"), line.rsplit(" ", 1), strict=True)) for line in series
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "50m",
                "exp_samples": [{"labels": "{}", "value": value}],
            }
        ],
    }


def test_the_metrics_page_of_a_running_server_has_no_fault(promtool: str) -> None:
    page: str = runpy.run_path(str(Path(__file__).with_name("generate.py")))["metrics_page"]()
    told(promtool, "check", "metrics", stdin=page)


def test_each_alert_has_a_place_in_the_handbook() -> None:
    handbook = (DOCS / "operations.md").read_text()
    for rule in RULES:
        assert f"### {rule['alert']}\n" in handbook, rule["alert"]
