"""The configuration follows its files (C065): good ones apply, bad ones change nothing."""
# ruff: noqa: ASYNC240 - the files of these tests are small and local

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from llmgw.config.loading import Loaded, load_server
from llmgw.errors import ConfigError, Problem
from llmgw.server.reload import Reloads
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

ONE = "models:\n  - {name: one, profiles: [{engine: toy, weights: 'path:/a'}]}\n"
TWO = ONE + "  - {name: two, profiles: [{engine: toy, weights: 'path:/b'}]}\n"


class Room:
    """A configuration file that is watched, and what was applied."""

    def __init__(self, file: Path, *, may_empty: bool = False) -> None:
        self.file = file
        self.clock = FakeClock()
        self.applied: list[list[str]] = []
        self.was_applied = anyio.Event()
        self.loads = 0
        file.write_text(ONE)
        self.reloads = Reloads(
            self._read(), load=self._load, apply=self._apply, clock=self.clock, may_empty=may_empty
        )

    def _read(self) -> Loaded:
        return load_server(self.file, {"HOME": "/h"}, {})

    def _load(self) -> Loaded:
        self.loads += 1
        return self._read()

    def _apply(self, loaded: Loaded) -> None:
        self.was_applied.set()
        self.applied.append([str(model.name) for model in loaded.settings.models])

    async def look(self, times: int = 3) -> None:
        for _ in range(times):
            await self.reloads.look()


async def watched(file: Path, *, may_empty: bool = False) -> Room:
    room = Room(file, may_empty=may_empty)
    await room.look(1)
    return room


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "llmgw.yaml"


async def test_a_good_file_is_applied_and_an_unchanged_one_is_not_read_again(file: Path) -> None:
    room = await watched(file)
    await room.look()
    assert room.loads == 0
    file.write_text(TWO)
    await room.look()
    assert room.applied == [["one", "two"]]
    await room.look()
    assert room.loads == 1


async def test_many_saves_in_a_second_are_one_change(file: Path) -> None:
    room = await watched(file)
    for _ in range(50):
        file.write_text(ONE)
    file.write_text(TWO)
    await room.look()
    assert room.loads == 1


def _half(file: Path) -> None:
    file.write_text(TWO.rstrip("\n"))


def _tab(file: Path) -> None:
    file.write_text("models:\n\t- name: tiny\n")


def _empty(file: Path) -> None:
    file.write_text("")


def _no_models(file: Path) -> None:
    file.write_text("models: []\ncontrol: {enabled: on}\n".replace("on}", "'on'}"))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("spoil", [_half, _tab, _empty, _no_models, _folder, _gone])
async def test_a_bad_file_changes_nothing_says_why_once_and_a_later_good_one_applies(
    file: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    room = await watched(file)
    spoil(file)
    await room.look(6)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == ["configuration not reloaded"]
    assert str(file) in errors[0].__dict__["fields"]["reason"]
    assert room.applied == []
    assert room.reloads.failed
    if file.is_dir():
        file.rmdir()
    file.write_text(TWO)
    await room.look()
    assert room.applied == [["one", "two"]]
    assert not room.reloads.failed


async def test_an_emptied_file_removes_models_only_where_that_is_allowed(file: Path) -> None:
    room = await watched(file, may_empty=True)
    _no_models(file)
    await room.look()
    assert room.applied == [[]]


async def test_a_swapped_link_is_a_change(file: Path, tmp_path: Path) -> None:
    room = await watched(file)
    (tmp_path / "next.yaml").write_text(TWO)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "next.yaml")
    link.rename(file)
    await room.look()
    assert room.applied == [["one", "two"]]


async def test_a_reload_can_be_asked_for(file: Path) -> None:
    room = await watched(file)
    async with anyio.create_task_group() as tasks:
        await tasks.start(room.reloads.run)
        room.reloads.ask()
        with anyio.fail_after(5):
            await room.was_applied.wait()
        tasks.cancel_scope.cancel()
    assert room.applied == [["one"]]


async def test_what_cannot_be_applied_is_a_failed_reload(file: Path) -> None:
    def refuse(loaded: Loaded) -> None:
        raise ConfigError("catalog", [Problem(path="one", message="is owned by the API")])

    room = Room(file)
    reloads = Reloads(room._read(), load=room._read, apply=refuse, clock=room.clock)
    assert not await reloads.reload()
    assert reloads.failed


async def test_settings_that_need_a_restart_are_named(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room(file)
    file.write_text("listen: 127.0.0.1:1\n" + ONE)
    assert await room.reloads.reload()
    fields = [record.__dict__["fields"] for record in caplog.records if record.levelno == 30]
    assert fields == [{"setting": "listen"}]
