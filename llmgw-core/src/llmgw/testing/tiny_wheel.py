"""Wheels of a few files, as pip installs them: for tests of what comes from a package index."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, bytes | Path]) -> str:
    """Write a wheel of these files and return its locked requirement, a line with its hash.

    files: content, or the file that has it, by the path inside the environment.
    """
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for place, content in files.items():
            if isinstance(content, Path):
                wheel.write(content, place)
            else:
                wheel.writestr(place, content)
        for place, text in about.items():
            wheel.writestr(f"{info}/{place}", text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}\n"


def index_of(folder: Path) -> dict[str, str]:
    """Return the environment of a pip and of a uv that know this folder of wheels and nothing else."""
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_NO_CONFIG": "1",
        # No variable of uv says "no index", so it gets one with nothing in it.
        "UV_DEFAULT_INDEX": (folder / "no-index").as_uri(),
        "UV_FIND_LINKS": str(folder),
    }
