"""What is left of a shard, judged from proofs, whatever has happened to the machine before.

`LLMGW_STEPS` sets how many steps happen to machines in all, 100 to an example.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from llmgw.testing import values
from llmgw_agent.node.adoption import Evidence, Remains, judge
from llmgw_agent.node.processes import Process, ProcessEntry
from llmgw_agent.node.shardfolder import LaunchRecord, ShimExit, ShimState

EXAMPLES = max(1, int(os.environ.get("LLMGW_STEPS", "10000")) // 100)
COOKIE = "me/r1.0"
PIDS = range(100, 103)  #: few, so that they come again

RECORD = LaunchRecord(
    run=2,
    argv=("e",),
    env={},
    cwd="/",
    port=20000,
    cookie=COOKIE,
    token="t",
    device_locks=(),
    shard=values.shard("r1.0"),
)
STATE = ShimState(
    run=2,
    boot_id="boot",
    shim_pid=10,
    shim_start_time=100,
    port=20000,
    first_log=1,
    pid=11,
    start_time=110,
)
EXIT = ShimExit(run=2, exit_code=1, first_log=1)
MAIN = ProcessEntry(process=Process(11, 110), parent=10, session=11, cookie=COOKIE)
RUNNING = Evidence(boot_id="boot", record=RECORD, state=STATE, exit=None, is_locked=True, main=MAIN)


@pytest.mark.parametrize(
    ("evidence", "remains"),
    [
        (RUNNING, Remains.RUNNING),
        (replace(RUNNING, main=replace(MAIN, cookie=None)), Remains.RUNNING),
        (replace(RUNNING, record=None, state=None), Remains.NOTHING),
        (replace(RUNNING, boot_id="another boot"), Remains.GONE),
        (replace(RUNNING, boot_id="another boot", is_locked=False), Remains.GONE),
        (replace(RUNNING, is_locked=False, exit=EXIT), Remains.ENDED),
        (replace(RUNNING, is_locked=False), Remains.SHIM_LOST),
        (replace(RUNNING, is_locked=False, state=None), Remains.NOTHING),
        (replace(RUNNING, is_locked=False, exit=replace(EXIT, run=1)), Remains.SHIM_LOST),
        (replace(RUNNING, state=None), Remains.STARTING),
        (replace(RUNNING, state=replace(STATE, run=1)), Remains.STARTING),
        (replace(RUNNING, state=replace(STATE, main_exit=0), main=None), Remains.LEFTOVERS),
        (replace(RUNNING, main=None), Remains.LEFTOVERS),
        # The pid was given to another process since: neither adopted nor signalled.
        (replace(RUNNING, main=replace(MAIN, process=Process(11, 999))), Remains.LEFTOVERS),
        (replace(RUNNING, main=replace(MAIN, cookie="you/r1.0")), Remains.LEFTOVERS),
    ],
)
def test_a_shard_is_what_the_proofs_say(evidence: Evidence, remains: Remains) -> None:
    assert judge(evidence) is remains


class Machine(RuleBasedStateMachine):
    """One shard's files and processes. What is true is kept beside what can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.boots = self.tick = 0
        self.record: LaunchRecord | None = None
        self.state: ShimState | None = None
        self.exit: ShimExit | None = None
        self.processes: dict[int, ProcessEntry] = {}
        self.is_prepared = False  #: a record whose shim has not come yet
        self.shim_lives = False
        self.engine: Process | None = None  #: of the newest run, while it lives
        self.worker_lives = False

    def run_process(self, pid: int, cookie: str | None) -> Process:
        """Let a process have a pid; a start time comes once in a boot."""
        self.tick += 1
        process = Process(pid, self.tick)
        entry = ProcessEntry(process=process, parent=1, session=pid, cookie=cookie)
        self.processes[pid] = entry
        return process

    @precondition(lambda self: not self.shim_lives)
    @rule()
    def prepare(self) -> None:
        """An agent cleared what was left (nothing of it lives) and wrote down a new run."""
        self.processes.clear()
        self.engine, self.worker_lives = None, False
        self.state = self.exit = None
        self.record = replace(RECORD, run=self.record.run + 1 if self.record else 1)
        self.is_prepared = True

    @precondition(lambda self: self.is_prepared)
    @rule()
    def shim_begins(self) -> None:
        self.is_prepared, self.shim_lives = False, True

    @precondition(lambda self: self.shim_lives and self.state is None)
    @rule(pid=st.sampled_from(PIDS), has_worker=st.booleans())
    def engine_begins(self, pid: int, has_worker: bool) -> None:
        assert self.record is not None
        self.engine = self.run_process(pid, COOKIE)
        self.worker_lives = has_worker
        self.state = ShimState(
            run=self.record.run,
            boot_id=f"boot-{self.boots}",
            shim_pid=1,
            shim_start_time=1,
            port=20000,
            first_log=1,
            pid=self.engine.pid,
            start_time=self.engine.start_time,
        )

    @precondition(lambda self: self.engine is not None)
    @rule()
    def engine_sets_its_title(self) -> None:
        assert self.engine is not None
        entry = self.processes[self.engine.pid]
        self.processes[self.engine.pid] = replace(entry, cookie=None)

    @precondition(lambda self: self.engine is not None)
    @rule(code=st.sampled_from([0, 1, -9]))
    def main_process_ends(self, code: int) -> None:
        assert self.engine is not None
        del self.processes[self.engine.pid]
        self.engine = None
        if self.shim_lives and self.state is not None:
            self.state = replace(self.state, main_exit=code)
            self.shim_reaps()

    @precondition(lambda self: self.worker_lives)
    @rule()
    def worker_ends(self) -> None:
        self.worker_lives = False
        self.shim_reaps()

    def shim_reaps(self) -> None:
        if self.shim_lives and self.engine is None and not self.worker_lives:
            assert self.record is not None
            self.exit = ShimExit(run=self.record.run, exit_code=1, first_log=1)
            self.shim_lives = False

    @precondition(lambda self: self.shim_lives)
    @rule()
    def shim_is_killed(self) -> None:
        self.shim_lives = False

    @rule(pid=st.sampled_from(PIDS), cookie=st.sampled_from([None, "you/r1.0", COOKIE]))
    def pid_comes_again(self, pid: int, cookie: str | None) -> None:
        if pid not in self.processes:
            self.run_process(pid, cookie)

    @rule()
    def machine_boots(self) -> None:
        self.boots += 1
        self.tick = 0  # start times count from the boot
        self.processes.clear()
        self.engine, self.worker_lives = None, False
        self.shim_lives = self.is_prepared = False

    @property
    def truth(self) -> Remains:
        if self.record is None:
            return Remains.NOTHING
        if self.state is not None and self.state.boot_id != f"boot-{self.boots}":
            return Remains.GONE
        if self.shim_lives:
            if self.state is None:
                return Remains.STARTING
            return Remains.RUNNING if self.engine is not None else Remains.LEFTOVERS
        if self.exit is not None:
            return Remains.ENDED
        return Remains.SHIM_LOST if self.state is not None else Remains.NOTHING

    @invariant()
    def what_is_seen_is_taken_for_what_is_true(self) -> None:
        evidence = Evidence(
            boot_id=f"boot-{self.boots}",
            record=self.record,
            state=self.state,
            exit=self.exit,
            is_locked=self.shim_lives,
            main=self.processes.get(self.state.pid) if self.state else None,
        )
        assert judge(evidence) is self.truth


@pytest.mark.timeout(120)
def test_an_agent_adopts_what_runs_and_nothing_else() -> None:
    steps = settings(max_examples=EXAMPLES, stateful_step_count=100, deadline=None)
    run_state_machine_as_test(Machine, settings=steps)
