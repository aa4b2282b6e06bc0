"""The committed code is what agent.proto says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_generated_code_is_current() -> None:
    check = subprocess.run(
        [sys.executable, Path(__file__).with_name("generate.py"), "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr
