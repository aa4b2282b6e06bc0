"""`hf:` against a small hub on loopback."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.contracts.weights import FetchContext, FileProof
from llmgw.domain.secret import Secret
from llmgw.errors import PermanentError, TransientError
from llmgw.testing.fake_hub import git_sha1, serve_hub
from llmgw_agent.node.weights.faults import Gated
from llmgw_agent.node.weights.hub import HubSource

FILES = {
    "model.safetensors": b"s" * 5000,
    "config.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "q4/m.gguf": b"GGUF" + b"q" * 100,
}


@pytest.fixture
def hub() -> Iterator[str]:
    with serve_hub({"org/name": FILES, "org/gated": None}) as url:
        yield url


class Fetch:
    def __init__(self, folder: Path) -> None:
        self.reserved = 0
        self.seen: list[float] = []
        self.context = FetchContext(
            folder=folder,
            report=lambda done, _: self.seen.append(done),
            reserve=self._reserve,
            secrets={"hf": Secret("hf_canary")},
            roots=(),
        )

    def _reserve(self, size: int) -> None:
        self.reserved += size


def test_a_repository_is_fetched_at_one_revision_without_its_pickles(
    tmp_path: Path, hub: str
) -> None:
    fetch = Fetch(tmp_path)
    folder = HubSource(hub).fetch("hf:org/name@main", fetch.context)
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert (folder / "q4" / "m.gguf").is_file()
    assert not (folder / "pytorch_model.bin").exists()
    assert fetch.reserved == sum(len(data) for name, data in FILES.items() if "bin" not in name)
    # Two nodes that fetched it have the same files: nothing in them says when that was.
    assert not list(folder.glob(".*"))


def test_the_hub_says_what_each_file_is(tmp_path: Path, hub: str) -> None:
    proof = HubSource(hub).proof("hf:org/name@main", Fetch(tmp_path).context)
    assert proof == {
        "files/model.safetensors": FileProof(
            size=5000, sha256=hashlib.sha256(FILES["model.safetensors"]).hexdigest()
        ),
        "files/config.json": FileProof(size=2, git_sha1=git_sha1(b"{}")),
        "files/q4/m.gguf": FileProof(
            size=104, sha256=hashlib.sha256(FILES["q4/m.gguf"]).hexdigest()
        ),
    }
    with pytest.raises(Gated):
        HubSource(hub).proof("hf:org/gated@main", Fetch(tmp_path).context)


def test_what_is_fetched_lies_where_the_proof_says(tmp_path: Path, hub: str) -> None:
    source, fetch = HubSource(hub), Fetch(tmp_path)
    source.fetch("hf:org/name@main", fetch.context)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == source.proof("hf:org/name@main", fetch.context).keys()


def test_one_file_of_a_repository_is_that_file(tmp_path: Path, hub: str) -> None:
    path = HubSource(hub).fetch("hf:org/name@main/q4/*.gguf", Fetch(tmp_path).context)
    assert path.name == "m.gguf"
    assert path.read_bytes() == FILES["q4/m.gguf"]


def test_a_gated_repository_says_what_to_do_and_not_the_token(tmp_path: Path, hub: str) -> None:
    with pytest.raises(Gated, match="HUB_TOKEN") as failed:
        HubSource(hub).fetch("hf:org/gated@main", Fetch(tmp_path).context)
    assert "canary" not in str(failed.value)


def test_a_repository_that_is_not_there_is_named(tmp_path: Path, hub: str) -> None:
    with pytest.raises(PermanentError, match="org/none"):
        HubSource(hub).fetch("hf:org/none@main", Fetch(tmp_path).context)


def test_a_hub_that_does_not_answer_is_worth_another_try(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="org/name"):
        HubSource("http://127.0.0.1:9").fetch("hf:org/name@main", Fetch(tmp_path).context)
