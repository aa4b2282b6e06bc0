"""Be the author of a plugin who has the guide and nothing else: write its files, type its commands.

Run by `nox -s wheels` with the folder of built wheels, which stand for the package index. What
the pages show as output is what came out, where `…` is any number of lines and columns may be
wider. No environment but the one that the pages make is used.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("plugins.md", "plugins-worked.md", "plugins-engine.md")  # the first makes the environment
_LIMIT_S = 300.0
_MARK = "--- output ---"


def main() -> None:
    wheels = Path(sys.argv[1]).resolve()
    # nox puts it into the repository, whose settings of pytest no author has.
    os.environ.pop("TMPDIR", None)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for page in PAGES:
            text = (DOCS / page).read_text()
            write_files(home, text)
            steps = list(steps_of(text))
            for (command, shown), said in zip(steps, type_all(home, wheels, steps), strict=True):
                if not matches(said, shown):
                    sys.exit(f"docs/{page}: `{command}` shows\n{shown}\nbut it said\n{said}")


def write_files(home: Path, text: str) -> None:
    """Write every block whose first line is a comment with a file's name."""
    blocks = re.findall(r"```(?:python|toml|yaml)\n# ([\w./-]+\.\w+)\n(.*?)```", text, re.DOTALL)
    for name, content in blocks:
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(content)


def steps_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a page with the output below it; empty: it shows none."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def type_all(home: Path, wheels: Path, steps: list[tuple[str, str]]) -> list[str]:
    """Type the commands into one shell and return what each said."""
    venv = home / "venv"
    script = [f". {venv}/bin/activate"] if venv.exists() else []
    script += [f"echo '{_MARK}'; {command}" for command, _ in steps]
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join(script),
        cwd=home,
        env=clean_environment(home, wheels),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"the guide's commands fail:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout.split(f"{_MARK}\n")[1:]


def clean_environment(home: Path, wheels: Path) -> dict[str, str]:
    """This process's, without its own virtual environment, and with the wheels for an index."""
    ours = re.compile(r"(LLMGW|PYTEST|PYTHON|VIRTUAL_ENV|NOX)")
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    programs = home / "programs"
    programs.mkdir(exist_ok=True)
    if not (python := programs / "python3").exists():
        python.symlink_to(getattr(sys, "_base_executable", sys.executable))
    path = [
        place
        for place in kept["PATH"].split(os.pathsep)
        if not (Path(place).parent / "pyvenv.cfg").exists()
    ]
    return {
        **kept,
        "PATH": os.pathsep.join([str(programs), *path]),
        "PIP_FIND_LINKS": f"{kept.get('PIP_FIND_LINKS', '')} {wheels}".strip(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def matches(said: str, shown: str) -> bool:
    """Return whether the output is as shown."""
    if not shown.strip():
        return True
    parts = [
        ".*" if line.strip() == "…" else r"[^\n]*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in map(_narrow, shown.splitlines())
    ]
    narrow = "".join(f"{_narrow(line)}\n" for line in said.splitlines())
    return re.fullmatch("".join(parts), narrow, re.DOTALL) is not None


def _narrow(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return " " * indent + " ".join(line.split())


if __name__ == "__main__":
    main()
