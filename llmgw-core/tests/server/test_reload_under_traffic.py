"""Saves of every kind while requests come: none fails, and the last good file is in force (C065)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from llmgw.testing.cluster import running_server
from llmgw.testing.engine_script import Script, ScriptedEngine

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def by_rename(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(file)


def by_link(file: Path, text: str) -> None:
    target = file.with_name(f"target-{len(text)}.yaml")
    target.write_text(text)
    link = file.with_suffix(".link")
    link.symlink_to(target)
    link.rename(file)


def in_place(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


async def test_no_save_costs_a_request(tmp_path: Path) -> None:
    async with ScriptedEngine(Script.plain({"object": "chat.completion"})) as engine:
        entry = f"  - {{id: e1, url: '{engine.url}', models: [m, NAME], health_path: null}}\n"
        good = "endpoints:\n" + entry
        file = tmp_path / "llmgw.yaml"
        file.write_text(good.replace("NAME", "zero"))
        statuses: set[int] = set()

        async with running_server(tmp_path / "state", config=file) as server:

            async def ask_for_ever() -> None:
                while True:
                    answer = await server.api.post("/v1/chat/completions", json=CHAT)
                    statuses.add(answer.status_code)
                    await anyio.sleep(0.01)

            async def is_served(name: str) -> None:
                with anyio.fail_after(10):
                    while True:  # the server is real, and seen from outside
                        listed = (await server.api.get("/v1/models")).json()["data"]
                        if name in [model["id"] for model in listed]:
                            return
                        await anyio.sleep(0.05)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_for_ever)
                saves: list[tuple[str, Callable[[Path, str], None]]] = [
                    ("renamed", by_rename),
                    ("linked", by_link),
                    ("rewritten", in_place),
                ]
                for name, save in saves:
                    for bad in (good[:30], "endpoints:\n\t- {}\n", "", "endpoints: []\n"):
                        save(file, bad)
                        await anyio.sleep(0.02)
                    save(file, "endpoints: [\n")
                    await anyio.sleep(2.2)  # long enough to be read, and refused
                    for _ in range(50):
                        save(file, good.replace("NAME", name))
                    await is_served(name)
                tasks.cancel_scope.cancel()
        assert statuses == {200}
