"""Our own sinks pass the kit that authors of others use, and careless ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.domain.endpoints import Endpoint, ModelStatus
from llmgw.sinks.envoy import EnvoyFiles
from llmgw.sinks.prometheus import PrometheusTargets
from llmgw.testing.sinks import NOTHING, ONE, SinkContract


class Files(SinkContract):
    """For those whose outside is every file of the folder."""

    def outside(self, folder: Path) -> object:
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        return [(path.name, path.read_text()) for path in files]


class TestPrometheus(Files):
    def make(self, folder: Path) -> PrometheusTargets:
        return PrometheusTargets(folder / "targets.json")

    def make_unreachable(self, folder: Path) -> PrometheusTargets:
        return PrometheusTargets(_taken(folder) / "targets.json")


class TestEnvoy(Files):
    def make(self, folder: Path) -> EnvoyFiles:
        return EnvoyFiles(folder, listen=("127.0.0.1", 10000))

    def make_unreachable(self, folder: Path) -> EnvoyFiles:
        return EnvoyFiles(_taken(folder), listen=("127.0.0.1", 10000))


def _taken(folder: Path) -> Path:
    """Return a file where a folder is needed."""
    taken = folder / "taken"
    taken.write_text("")
    return taken


class Adding:
    """Keeps what it was told before."""

    name = "adding"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def publish(
        self,
        endpoints: tuple[Endpoint, ...],
        models: tuple[ModelStatus, ...],
    ) -> None:
        with self._path.open("a") as file:
            file.writelines(f"{endpoint.id}\n" for endpoint in endpoints)


class Careless(Files):
    """The kit of a sink with the faults that it looks for."""

    def make(self, folder: Path) -> Adding:
        return Adding(folder / "file")

    def make_unreachable(self, folder: Path) -> Adding:
        return Adding(_taken(folder) / "file")


def test_a_sink_that_adds_to_what_it_said_breaks_the_rules(tmp_path: Path) -> None:
    kit = Careless()
    for name, state in (("one", ONE), ("nothing", NOTHING)):
        here = tmp_path / name
        here.mkdir()
        with pytest.raises(AssertionError):
            kit.test_the_outside_is_the_last_state_whatever_it_was_before(state, here)
    with pytest.raises(AssertionError):
        kit.test_a_sink_that_starts_anew_takes_over_what_is_there(tmp_path)


def test_an_error_of_its_own_library_breaks_the_rule(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        Careless().test_what_cannot_be_reached_is_tried_again(tmp_path)
