"""Run a program that must not outlive the process that started it.

    python -m llmgw.cli.up.tether PARENT_PID PROGRAM [ARGUMENT …]

Only Linux keeps the promise by itself (PR_SET_PDEATHSIG, kept across exec); elsewhere the
program simply runs. SIGKILL on purpose: an agent that is asked to stop would stop its engines,
and those must be there for the next `llmgw up` to adopt.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above took effect
            sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - a list, never a shell's


if __name__ == "__main__":
    main()
