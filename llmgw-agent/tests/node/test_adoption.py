"""What is left of a shard, judged from proofs."""

from dataclasses import replace

import pytest

from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import ModelName, ProfileName, ReplicaId, ShardId
from llmgw_agent.node.adoption import Evidence, Remains, judge
from llmgw_agent.node.processes import Process, ProcessEntry
from llmgw_agent.node.shardfolder import LaunchRecord, ShimExit, ShimState

SPEC = ShardSpec(
    id=ShardId("r1.0"),
    replica=ReplicaId("r1"),
    model=ModelName("m"),
    served_names=(ModelName("m"),),
    profile=ProfileName("p"),
    spec_hash="h",
    engine="fake",
    engine_version=None,
    weights="path:/w",
    options={},
    devices=(),
    rank=0,
    ports=(20000,),
)
RECORD = LaunchRecord(
    run=2,
    argv=("e",),
    env={},
    cwd="/",
    port=20000,
    cookie="me/r1.0",
    token="t",
    device_locks=(),
    shard=SPEC,
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
MAIN = ProcessEntry(process=Process(11, 110), parent=10, session=11, cookie="me/r1.0")
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
