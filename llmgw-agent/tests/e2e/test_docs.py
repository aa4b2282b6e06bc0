"""What the documentation tells its reader to type works, against one running `llmgw up`."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llmgw.testing.site import Site, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[3] / "docs"
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
#: They wait for what a hub or an index sends; test_node_work tries them with sources of its own.
FETCHING = ("ctl weights pull", "ctl weights remove", "ctl engines install", "ctl engines remove")


def ctl_commands() -> list[str]:
    """Every `llmgw ctl` that a page shows as typed and that fetches nothing, in order, each once."""
    found = [
        line
        for page in sorted(DOCS.glob("*.md"))
        for block in CONSOLE.findall(page.read_text())
        for line in re.findall(r"^\$ llmgw (ctl .*)$", block, re.MULTILINE)
    ]
    return [line for line in dict.fromkeys(found) if not line.startswith(FETCHING)]


@pytest.fixture(scope="module")
def serving(module_site: Site, tiny_gguf: Path) -> Site:
    """One machine that serves a tiny model as `default`, and has a catalog file to apply."""
    module_site.up(str(tiny_gguf))
    wait_for("it serves", lambda: module_site.is_ready("default"), 60)
    profile = {"engine": "llamacpp", "weights": f"path:{tiny_gguf}"}
    entry = {"name": "more", "replicas": {"min": 0}, "profiles": [profile]}
    (module_site.home / "catalog.yaml").write_text(yaml.safe_dump({"models": [entry]}))
    return module_site


def as_here(command: str, site: Site) -> list[str]:
    """Put what this site has in the place of the page's examples."""
    replica = site.ctl("replicas")["replicas"][0]
    here = {
        "gpu-01": "local",
        "llama-3.1-8b": replica["model"],
        "llama3": replica["model"],
        "chat": replica["model"],
        "llama-1.0": replica["shards"][0]["id"],
        "catalog.yaml": str(site.home / "catalog.yaml"),
        "12": "1",
        "KEY": site.ctl("keys", "list")["keys"][0]["id"] if "KEY" in command else "",
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
        assert done.stdout.strip() or "uncordon" in command, command


def test_the_first_steps_work(serving: Site) -> None:
    text = (DOCS / "first-run.md").read_text().replace("smollm2", "default")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{serving.api_port}")
    if shutil.which("curl") is not None:
        (curl,) = re.findall(r"^    (curl -N .*?\n.*?)\n", text, re.MULTILINE)
        asked = ["bash", "-c", f"{curl} --noproxy '*' --silent --max-time 60"]
        streamed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert streamed.count("data: ") > 2
        assert "data: [DONE]" in streamed
    (program,) = re.findall(r'^    python -c "\n(.*?)"$', text, re.MULTILINE | re.DOTALL)
    code = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    asked = [sys.executable, "-c", code]
    env = {**serving.env, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
