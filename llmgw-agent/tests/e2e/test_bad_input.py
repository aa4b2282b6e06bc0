"""What goes wrong at a first run: one clear message with the way out, and nothing left behind."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
import yaml

from llmgw.testing.site import Site, wait_for

pytestmark = pytest.mark.e2e


def test_a_wrong_configuration_names_each_problem(site: Site) -> None:
    config = site.home / "bad.yaml"
    config.write_text(
        "models:\n- {name: m, profiles: [{engine: vlm, weights: 'path:/x', devices: {count: -1}}]}\n"
        "lissten: 1\n"
    )
    done = site.run("server", "--config", str(config))
    assert done.returncode == 2
    for told in (
        "models[0].profiles[0].devices.count",
        "unknown engine 'vlm'",
        "lissten",
        "listen",
    ):
        assert told in done.stderr
    assert not site.state_dir.exists()


def test_nothing_to_serve_names_both_ways_out(site: Site) -> None:
    done = site.run("server")
    assert done.returncode == 2
    assert "profile" in done.stderr
    assert "--endpoint" in done.stderr


def test_a_malformed_endpoint_shows_the_form(site: Site) -> None:
    done = site.run("server", "--endpoint", "nonsense")
    assert done.returncode == 2
    assert "id=URL=model" in done.stderr


def test_a_taken_port_is_named_and_the_others_are_released(site: Site) -> None:
    with socket.create_server(("127.0.0.1", site.admin_port)):
        done = site.run(
            *("server", "--endpoint", "e=http://127.0.0.1:9=m"),
            *("--listen", f"127.0.0.1:{site.api_port}"),
            *("--admin-listen", f"127.0.0.1:{site.admin_port}"),
        )
        assert done.returncode == 2, done.stderr
        assert f"127.0.0.1:{site.admin_port}" in done.stderr
        socket.create_server(("127.0.0.1", site.api_port)).close()


def test_a_taken_port_under_up_is_told_in_the_terminal(site: Site, tiny_gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", site.api_port)):
        up = site.up(str(tiny_gguf))
        assert up.process.wait(60) == 2
        assert f"127.0.0.1:{site.api_port}" in up.text


def test_a_missing_weight_file_is_told_before_anything_starts(site: Site) -> None:
    done = site.run("up", str(site.home / "none.gguf"))
    assert done.returncode == 2
    assert "none.gguf" in done.stderr


def test_a_corrupt_weight_file_is_the_replicas_reason(site: Site, tiny_gguf: Path) -> None:
    broken = site.home / "broken.gguf"
    broken.write_bytes(tiny_gguf.read_bytes()[:20_000])
    up = site.up(str(broken))
    wait_for("the cause is told", lambda: "corrupt" in up.text or "cut off" in up.text, 60)
    (replica,) = wait_for("a replica", lambda: site.ctl("replicas")["replicas"], 10)
    assert replica["shards"][0]["cause"] == "weights_corrupt"
    assert replica["shards"][0]["log_tail"]
    refused = site.ask("broken")
    assert refused.status_code == 503
    assert up.interrupt() == 0


def test_an_unknown_file_for_up_says_what_it_takes(site: Site) -> None:
    odd = site.home / "model.bin"
    odd.write_bytes(b"x")
    done = site.run("up", str(odd))
    assert done.returncode == 2
    assert ".gguf" in done.stderr


def test_up_serves_a_catalog_file(site: Site, tiny_gguf: Path) -> None:
    catalog = site.home / "catalog.yaml"
    profile = {"engine": "llamacpp", "weights": f"path:{tiny_gguf}"}
    models = [{"name": "acme/tiny-7b:q4", "aliases": ["tiny"], "profiles": [profile]}]
    catalog.write_text(yaml.safe_dump({"models": models}))
    site.up(str(catalog))
    wait_for("it serves", lambda: site.is_ready("tiny"), 60)
    listed = httpx.get(f"{site.base_url}/v1/models/acme/tiny-7b:q4", trust_env=False)
    assert listed.json()["id"] == "acme/tiny-7b:q4"
    assert site.ask("acme/tiny-7b:q4").json()["model"] == "acme/tiny-7b:q4"
