"""What the documentation tells its reader to type works, against one running `llmgw up`.

With this machine's names and addresses in the place of the pages', as anybody can run it; `nox -s pages`
types all of it as it stands.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from llmgw.testing.fake_hub import serve_hub
from llmgw.testing.pages import commands_of
from llmgw.testing.site import Site, wait_for
from llmgw.testing.tiny_wheel import index_of, write_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[3] / "docs"
SILENT = ("ctl uncordon", "ctl contexts set")
#: What the pages fetch from a hub and an index; here both are this machine's.
REPOSITORY = "Qwen/Qwen3-0.6B"
ENGINES = (("vllm", "0.33.0"), ("vllm", "0.32.0-cpu"))


def ctl_commands() -> list[str]:
    """Every `llmgw ctl` that a page shows as typed, in order, each once."""
    found = [
        command.removeprefix("llmgw ")
        for page in sorted(DOCS.glob("*.md"))
        for command in commands_of(page.read_text())
        if command.startswith("llmgw ctl ")
    ]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def sources(module_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A machine whose hub and package index are on it, with what the pages fetch from them."""
    index, locks = tmp_path_factory.mktemp("index"), tmp_path_factory.mktemp("locks")
    for engine, version in ENGINES:
        release = version.replace("-", "+")  # as a wheel may be called
        requirement = write_wheel(index, engine, release, {f"{engine}.py": b""})
        (locks / f"{engine}-{version}.txt").write_text(requirement)
    files = {"model.safetensors": b"weights", "config.json": b"{}"}
    with serve_hub({REPOSITORY: files}) as hub:
        module_site.env |= {
            "XDG_CONFIG_HOME": str(module_site.home / "config"),
            "HF_ENDPOINT": hub,
            "NO_PROXY": "127.0.0.1",
            **index_of(index),
            "LLMGW_AGENT__ENGINE_LOCKS": str(locks),
        }
        yield module_site


@pytest.fixture(scope="module")
def serving(sources: Site, tiny_gguf: Path) -> Site:
    """One machine that serves a tiny model as `default`, and has a catalog file to apply."""
    sources.up(str(tiny_gguf))
    wait_for("it serves", lambda: sources.is_ready("default"), 60)
    sources.ctl("engines", "install", "local", *ENGINES[1])  # the older one, which a page removes
    profile = {"engine": "llamacpp", "weights": f"path:{tiny_gguf}"}
    entry = {"name": "more", "replicas": {"min": 0}, "profiles": [profile]}
    (sources.home / "catalog.yaml").write_text(yaml.safe_dump({"models": [entry]}))
    return sources


def as_here(command: str, site: Site) -> list[str]:
    """Put what this site has in the place of the page's examples."""
    replica = site.ctl("replicas")["replicas"][0]
    here = {
        "gpu-01": "local",
        "llama-3.1-8b": replica["model"],
        "llama3": replica["model"],
        "chat": replica["model"],
        "chat-1-1.0": replica["shards"][0]["id"],
        "catalog.yaml": str(site.home / "catalog.yaml"),
    }
    words = shlex.split(command.replace("--token-file /var/lib/llmgw/admin.token ", ""))
    pool = words.index("--pool") + 1 if "--pool" in words else None
    return [word if at == pool else here.get(word, word) for at, word in enumerate(words)]


def test_the_commands_of_the_documentation_work(serving: Site) -> None:
    commands = ctl_commands()
    assert len(commands) > 20
    for command in commands:
        _, *words = as_here(command, serving)
        server = ["ctl", "--server", f"http://127.0.0.1:{serving.admin_port}"]
        done = serving.run(*server, *words)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip() or command.startswith(SILENT), command


def test_a_configuration_is_checked_and_served_as_its_page_shows(site: Site) -> None:
    text = (DOCS / "configuration.md").read_text()
    (file,) = re.findall(r"```yaml\n(# llmgw.yaml\n.*?)```", text, re.DOTALL)
    (good,) = re.findall(
        r"^\$ llmgw config check llmgw.yaml\n(.*)\n\$ llmgw server", text, re.MULTILINE
    )
    (bad,) = re.findall(
        r"^\$ llmgw config check llmgw.yaml\n(llmgw: .*?)```", text, re.MULTILINE | re.DOTALL
    )
    config = site.home / "llmgw.yaml"
    config.write_text(file)
    done = site.run("config", "check", "llmgw.yaml", cwd=site.home)
    assert (done.returncode, done.stdout) == (0, f"{good}\n")
    spoilt = "  - name: odd\n    profiles:\n      - weights: path:/models/odd.gguf\n"
    spoilt += "        engine: vlm\n        devices:\n          count: -1\n"
    config.write_text(file.replace("endpoints:", f"{spoilt}endpoints:"))
    done = site.run("config", "check", "llmgw.yaml", cwd=site.home)
    assert (done.returncode, done.stdout + done.stderr) == (2, bad)

    config.write_text(file)
    site.env |= {
        "LLMGW_LISTEN": f"127.0.0.1:{site.api_port}",
        "LLMGW_ADMIN_LISTEN": f"127.0.0.1:{site.admin_port}",
        "LLMGW_AGENT_LISTEN": f"127.0.0.1:{site.agent_port}",
    }
    site.start("server", "--config", str(config))
    wait_for("it lists its models", lambda: _lists(site, "llama3"), 30)


def _lists(site: Site, model: str) -> bool:
    try:
        listed = httpx.get(f"{site.base_url}/v1/models", trust_env=False, timeout=2)
    except httpx.TransportError:
        return False
    return model in listed.text


def test_the_first_steps_work(serving: Site) -> None:
    text = (DOCS / "first-run.md").read_text().replace("smollm2", "default")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{serving.api_port}")
    by_program = {command.partition(" ")[0]: command for command in commands_of(text)}
    if shutil.which("curl") is not None:
        asked = ["bash", "-c", f"{by_program['curl']} --noproxy '*' --silent --max-time 60"]
        streamed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert streamed.count("data: ") > 2
        assert "data: [DONE]" in streamed
    asked = [sys.executable, *shlex.split(by_program["python"])[1:]]
    env = {**serving.env, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
