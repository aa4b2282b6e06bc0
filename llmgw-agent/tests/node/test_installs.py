"""Engines installed side by side, from a folder of wheels."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmgw.errors import PermanentError
from llmgw.testing.fake_adapter import FakeEngineAdapter
from llmgw.testing.tiny_wheel import index_of, write_wheel
from llmgw_agent.node.engines import NodeHomes
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.installs import EngineInstaller

pytestmark = pytest.mark.anyio


def wheel(folder: Path, version: str, **files: str) -> str:
    """Make a wheel of `toy-engine` and return its locked requirement."""
    contents = {"toy_engine.py": f"VERSION = {version!r}\n", **files}
    encoded = {place: text.encode() for place, text in contents.items()}
    return write_wheel(folder, "toy-engine", version, encoded)


class ToyAdapter(FakeEngineAdapter):
    """A fake engine that comes as a package, with locked requirements."""

    name = "toy"
    distributions = ("toy-engine",)

    def __init__(self, locks: dict[str, str]) -> None:
        self.locks = locks

    @property
    def locked_versions(self) -> tuple[str, ...]:
        return tuple(self.locks)

    def requirements(self, version: str) -> str:
        if version not in self.locks:
            raise PermanentError(f"no lock for toy {version}; there are: {', '.join(self.locks)}")
        return self.locks[version]


class Site:
    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.locks: dict[str, str] = {}
        self.used: set[tuple[str, str | None]] = set()
        self.folder = folder / "engines"
        self.adapters: dict[str, Any] = {"toy": ToyAdapter(self.locks)}
        self.installer = EngineInstaller(
            self.folder,
            adapters=self.adapters,
            used=lambda: frozenset(self.used),
            environment={"PATH": "/usr/bin:/bin", "HOME": str(folder), **index_of(self.wheels)},
        )
        self.homes = NodeHomes(folder=self.folder, adapters=self.adapters, installer=self.installer)


@pytest.fixture(params=["uv", "pip"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Where engines are installed by either program."""
    if request.param == "pip":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return Site(tmp_path)


def version_in(python: str | None) -> str:
    code = "import toy_engine; print(toy_engine.VERSION)"
    assert python is not None
    return subprocess.check_output([python, "-c", code], text=True).strip()


def nothing(done: float, total: float | None) -> None:
    pass


async def test_two_versions_live_side_by_side_and_are_found_again(site: Site, spec: Any) -> None:
    for version in ("1.0", "2.0"):
        site.locks[version] = wheel(site.wheels, version)
        wanted = replace(spec(), engine="toy", engine_version=version)
        home = await site.homes.resolve(wanted, nothing)
        assert version_in(home.python) == version
    assert [item.version for item in site.homes.installed()] == ["2.0", "1.0"]
    site.locks.clear()  # what is there needs no requirement set any more
    home = await site.homes.resolve(replace(spec(), engine="toy", engine_version="1.0"), nothing)
    assert version_in(home.python) == "1.0"


async def test_other_bytes_than_the_lock_says_are_refused_and_leave_nothing(site: Site) -> None:
    wheel(site.wheels, "1.0")
    site.locks["1.0"] = f"toy-engine==1.0 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(PermanentError, match=r"(?i)hash"):
        await site.installer.install("toy", "1.0", report=nothing)
    assert site.homes.installed() == ()
    assert not (site.folder / "toy" / "1.0").exists()


async def test_a_package_that_runs_code_at_every_start_is_refused(site: Site) -> None:
    site.locks["1.0"] = wheel(site.wheels, "1.0", **{"evil.pth": "import os; os.getcwd()\n"})
    with pytest.raises(PermanentError, match=r"evil\.pth"):
        await site.installer.install("toy", "1.0", report=nothing)
    assert not (site.folder / "toy" / "1.0").exists()


async def test_an_installation_that_was_cut_off_is_made_anew(site: Site) -> None:
    site.locks["1.0"] = wheel(site.wheels, "1.0")
    half = site.folder / "toy" / "1.0" / "bin"
    half.mkdir(parents=True)
    (half / "python").write_text("broken")
    assert site.homes.installed() == ()
    path = await site.installer.ensure("toy", "1.0", nothing)
    assert version_in(str(path / "bin" / "python")) == "1.0"


async def test_what_is_missing_is_said_with_the_way_out(site: Site, spec: Any) -> None:
    with pytest.raises(PermanentError, match="no lock for toy"):
        await site.installer.install("toy", "9.9", report=nothing)
    with pytest.raises(StepFailed, match=r"toy 9\.9 is not on this node") as failed:
        await site.homes.resolve(replace(spec(), engine="toy", engine_version="9.9"), nothing)
    assert "llmgw ctl engines install" in failed.value.failure.hint
    with pytest.raises(StepFailed, match="no program"):
        await site.homes.resolve(
            replace(spec(), engine="toy", command=("/no/such/server",)), nothing
        )


@pytest.mark.parametrize("version", ["..", "../../x", "-rf", ""])
async def test_a_version_that_is_a_path_is_refused(site: Site, version: str) -> None:
    with pytest.raises(PermanentError):
        await site.installer.install("toy", version, report=nothing)
    with pytest.raises(PermanentError):
        await site.installer.remove("toy", version)


async def test_the_sites_own_sets_come_first_and_are_told_to_servers(
    site: Site, tmp_path: Path
) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    site.locks["1.0"] = "toy-engine==9.9 --hash=sha256:" + "0" * 64  # what nobody could install
    (locks / "toy-1.0.txt").write_text(wheel(site.wheels, "1.0"))
    (locks / "other-1.0.txt").touch()
    (locks / "toy-notes.md").touch()
    site.installer._locks = locks
    assert [(item.engine, item.version) for item in site.installer.installable()] == [
        ("toy", "1.0")
    ]
    home = await site.installer.ensure("toy", "1.0", nothing)
    assert version_in(str(home / "bin" / "python")) == "1.0"


async def test_an_engine_in_use_is_not_removed(site: Site) -> None:
    site.locks["1.0"] = wheel(site.wheels, "1.0")
    await site.installer.install("toy", "1.0", report=nothing)
    site.used.add(("toy", "1.0"))
    with pytest.raises(PermanentError, match="used"):
        await site.installer.remove("toy", "1.0")
    site.used.clear()
    await site.installer.remove("toy", "1.0")
    assert site.homes.installed() == ()


async def test_an_engine_that_is_no_package_counts_as_installed(tmp_path: Path, spec: Any) -> None:
    """Only its adapter can find it; a node that listed none would never be given a replica."""
    homes = NodeHomes(folder=tmp_path, adapters={"fake": FakeEngineAdapter()})
    assert [(item.engine, item.version) for item in homes.installed()] == [("fake", "")]
    assert (await homes.resolve(spec(engine="fake"), lambda *_: None)).python is None
