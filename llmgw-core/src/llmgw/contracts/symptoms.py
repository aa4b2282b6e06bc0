"""Finding out why an engine ended, from its exit code and what it printed.

An adapter brings a table of symptoms, most telling first; the rest is the same for all engines.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw.contracts.engine import EngineExit
from llmgw.domain.replicas import Failure, FailureCause

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MESSAGE_LIMIT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A line that gives a cause away."""

    pattern: str  #: regular expression, searched in each line without regard to case
    cause: FailureCause
    says: str  #: the message's beginning, e.g. `the weights file is cut off`
    hint: str = ""
    retry_options: Mapping[str, object] | None = None


def explain(end: EngineExit, symptoms: Sequence[Symptom], *, telling: str = "") -> Failure:
    """Return the first symptom's cause, else what the exit code says. Never raises.

    Earlier symptoms win over later ones, wherever their lines are, and of one symptom's lines
    the last. telling: pattern of lines that are worth quoting where no symptom fits, the last
    one of them; without a match the last line that is not blank is quoted. The agent adds the
    command and the log's tail.
    """
    lines = [plain_line(line) for line in (*end.head, *end.tail)]
    for symptom in symptoms:
        if line := _last_match(symptom.pattern, lines):
            return Failure(
                cause=symptom.cause,
                message=_one_line(f"{symptom.says}: {line}"),
                hint=symptom.hint,
                exit_code=end.exit_code,
                retry_options=symptom.retry_options,
            )
    said = (_last_match(telling, lines) if telling else "") or _last_match(r"\S", lines)
    failure = _by_exit_code(end)
    message = f"{failure.message}: {said}" if said else f"{failure.message}, without a word"
    return Failure(
        cause=failure.cause,
        message=_one_line(message),
        hint=failure.hint,
        exit_code=end.exit_code,
    )


def plain_line(line: str) -> str:
    """Return a line without terminal escapes and control characters.

    Of a progress bar, which redraws itself by carriage returns, the last state is kept.
    """
    return _CONTROL.sub("", line.rstrip("\r\n").rsplit("\r", 1)[-1]).strip()


def _last_match(pattern: str, lines: Sequence[str]) -> str:
    compiled = re.compile(pattern, re.IGNORECASE)
    return next((line for line in reversed(lines) if compiled.search(line)), "")


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def _by_exit_code(end: EngineExit) -> Failure:
    code = end.exit_code
    if code is None:
        cause = FailureCause.NO_PROGRESS if end.was_ready else FailureCause.START_TIMEOUT
        return Failure(
            cause=cause,
            message="the engine stopped answering" if end.was_ready else "the engine did not start",
            hint="look at the log; a bigger `start_limit` helps only if it was still loading",
        )
    if code < 0:
        return _by_signal(-code)
    if code in (126, 127):
        return Failure(
            cause=FailureCause.ENGINE_MISSING,
            message=f"the engine could not be executed (exit code {code})",
            hint="check the profile's `command`, or let the agent install the engine",
        )
    # Exit 0 that nobody asked for is a failure: vLLM ends so when one of its workers dies.
    cause = FailureCause.ENGINE_INTERNAL if end.was_ready or code == 0 else FailureCause.UNKNOWN
    return Failure(
        cause=cause,
        message=f"the engine ended with exit code {code}"
        + (" though nobody had asked it to" if code == 0 else ""),
    )


def _by_signal(number: int) -> Failure:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGILL:
        return Failure(
            cause=FailureCause.ILLEGAL_INSTRUCTION,
            message=f"the engine was ended by {name}",
            hint="this build of the engine uses instructions that the machine's CPU does not have",
        )
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE):
        return Failure(
            cause=FailureCause.ENGINE_INTERNAL, message=f"the engine crashed with {name}"
        )
    hint = ""
    if number == signal.SIGKILL:
        hint = "if nobody did it by hand, the kernel was out of memory: see `dmesg`"
    return Failure(cause=FailureCause.KILLED, message=f"the engine was ended by {name}", hint=hint)
