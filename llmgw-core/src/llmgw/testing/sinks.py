"""The contract of sinks as tests.

from llmgw.testing.sinks import SinkContract

class TestMine(SinkContract):
    def make(self, folder):
        return MySink(folder / "file")

    def make_unreachable(self, folder):
        return MySink(folder / "missing" / "file")

    def outside(self, folder):
        return (folder / "file").read_text()
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from llmgw.contracts.sinks import Sink
from llmgw.domain.endpoints import Endpoint, ModelState, ModelStatus
from llmgw.domain.ids import EndpointId, ModelName, NodeId, ReplicaId, safe_name_problem
from llmgw.domain.secret import Secret
from llmgw.errors import TransientError

__all__ = ["SinkContract", "endpoint"]

State = tuple[tuple[Endpoint, ...], tuple[ModelStatus, ...]]


def endpoint(id_: str, *models: str, draining: bool = False) -> Endpoint:
    """Return a ready engine of one node that serves these models and asks for a key."""
    return Endpoint(
        id=EndpointId(id_),
        url=f"http://10.0.0.2:{20000 + sum(id_.encode()) % 1000}",
        models=tuple(ModelName(name) for name in models),
        engine="fake",
        metrics_path="/metrics",
        credential=Secret("a-key"),
        node=NodeId("gpu-01"),
        replica=ReplicaId(id_),
        draining=draining,
    )


def _status(*names: str, state: ModelState = ModelState.SERVING) -> ModelStatus:
    return ModelStatus(names=tuple(ModelName(name) for name in names), state=state)


NOTHING: State = ((), ())
ONE: State = ((endpoint("e1", "chat", "default"),), (_status("chat", "default"),))
SEVERAL: State = (
    (
        endpoint("e1", "chat", "default"),
        endpoint("e2", "chat", "default", draining=True),
        endpoint("e3", "org/embed-1.5"),
    ),
    (
        _status("chat", "default"),
        _status("org/embed-1.5"),
        _status("large", state=ModelState.UNPLACEABLE),
        _status("rare", state=ModelState.ASLEEP),
    ),
)


class SinkContract:
    """Subclass it, give the three methods, and pytest finds the rest."""

    def make(self, folder: Path) -> Sink:
        """Return a sink whose outside is empty and lies in this folder, or is told by it."""
        raise NotImplementedError

    def make_unreachable(self, folder: Path) -> Sink:
        """Return one whose outside cannot be reached now."""
        raise NotImplementedError

    def outside(self, folder: Path) -> object:
        """Return what others see of what was published: anything that compares."""
        raise NotImplementedError

    def test_its_name_can_be_logged(self, tmp_path: Path) -> None:
        assert safe_name_problem(self.make(tmp_path).name) is None

    def test_an_empty_fleet_is_a_state_like_any_other(self, tmp_path: Path) -> None:
        self._publish(tmp_path, NOTHING)
        self.outside(tmp_path)

    @pytest.mark.parametrize("state", [NOTHING, ONE, SEVERAL], ids=["nothing", "one", "several"])
    def test_the_outside_is_the_last_state_whatever_it_was_before(
        self, state: State, tmp_path: Path
    ) -> None:
        fresh, used = tmp_path / "fresh", tmp_path / "used"
        fresh.mkdir()
        used.mkdir()
        self._publish(fresh, state)
        self._publish(used, SEVERAL, NOTHING, ONE, state, state)
        assert self._described(used) == self._described(fresh)

    def test_a_sink_that_starts_anew_takes_over_what_is_there(self, tmp_path: Path) -> None:
        self._publish(tmp_path, SEVERAL)
        self._publish(tmp_path, ONE)
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        self._publish(fresh, ONE)
        assert self._described(tmp_path) == self._described(fresh)

    def test_what_cannot_be_reached_is_tried_again(self, tmp_path: Path) -> None:
        sink = self.make_unreachable(tmp_path)
        with pytest.raises(TransientError) as caught:
            anyio.run(sink.publish, *ONE)
        assert str(caught.value)
        assert "a-key" not in str(caught.value)

    def _publish(self, folder: Path, *states: State) -> None:
        sink = self.make(folder)
        for endpoints, models in states:
            anyio.run(sink.publish, endpoints, models)

    def _described(self, folder: Path) -> str:
        """What is outside, with the folder's own name out of it."""
        return repr(self.outside(folder)).replace(str(folder), "FOLDER")
