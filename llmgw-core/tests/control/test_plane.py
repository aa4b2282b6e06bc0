"""The control plane as a whole, over nodes in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmgw.domain.commands import DrainShard, StartShard, StopShard
from llmgw.domain.endpoints import ModelState
from llmgw.domain.ids import NodeId, ShardId
from llmgw.domain.nodes import CachedWeights
from llmgw.domain.replicas import Failure, FailureCause, ShardState
from llmgw.domain.weights import WeightFacts
from llmgw.errors import ConfigError, NotLeader
from llmgw.testing import values
from llmgw.testing.clock import FakeClock

pytestmark = pytest.mark.anyio
N1, N2 = NodeId("n1"), NodeId("n2")


async def test_a_model_is_placed_started_and_published(site: Any) -> None:
    await site.serve([values.model("m", aliases=("alias",))], values.inventory("n1"))
    assert site.replicas() == ["n1:ready"]
    (endpoint,) = site.router.endpoints[-1]
    assert endpoint.models == ("m", "alias")
    assert endpoint.url == "http://127.0.0.1:20000"
    assert endpoint.credential.reveal() == f"key-of-{endpoint.id}.0"
    assert (endpoint.health_path, endpoint.node) == ("/health", "n1")
    assert site.router.status("m").state is ModelState.SERVING


async def test_nothing_is_ordered_before_the_fleet_has_settled(site: Any) -> None:
    site.plane.set_catalog([values.model("m")])
    site.fleet.join(values.inventory("n1"))
    await site.turn()
    assert site.fleet.sent == []
    assert site.router.endpoints == []
    assert site.router.status("m").state is ModelState.WAKING
    await site.turn(6)
    assert [type(command) for _, command in site.fleet.sent] == [StartShard]


async def test_a_restarted_server_adopts_what_runs(
    site: Any, make_site: Callable[..., Any]
) -> None:
    await site.serve([values.model("m"), values.model("n")], values.inventory("n1"))
    starts = len(site.fleet.nodes[N1].starts)
    again = make_site(site.fleet)
    again.plane.set_catalog([values.model("m"), values.model("n")])
    site.fleet.reconnect(N1)
    before = len(site.fleet.sent)
    await again.turn(10)
    assert again.replicas() == ["n1:ready", "n1:ready"]
    assert len(again.router.endpoints) == 1
    assert len(site.fleet.sent) == before
    assert len(site.fleet.nodes[N1].starts) == starts


async def test_an_unchanged_list_is_published_once(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    pushes = len(site.router.endpoints), len(site.router.models)
    await site.turn(20, after_s=3.0)
    assert (len(site.router.endpoints), len(site.router.models)) == pushes


async def test_a_start_that_its_node_has_not_reported_is_sent_again_and_changes_nothing(
    site: Any,
) -> None:
    site.plane.set_catalog([values.model("m")])
    site.fleet.join(values.inventory("n1"))
    await site.turn(8)
    lost = site.fleet.nodes[N1].shards.popitem()  # the node forgot it, as if it never arrived
    site.fleet.reconnect(N1)
    await site.turn()
    sent = [command.spec for _, command in site.fleet.sent]
    assert sent == [lost[1].spec, lost[1].spec]
    await site.turn(20)
    assert len(site.fleet.sent) == 2


async def test_an_agent_that_retries_gets_no_second_start(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"), values.inventory("n2"))
    (shard,) = site.fleet.nodes[N1].shards
    failure = Failure(cause=FailureCause.ENGINE_INTERNAL, message="it broke")
    site.fleet.enter(shard, ShardState.BACKOFF, failure=failure, restarts=1)
    before = len(site.fleet.sent)
    await site.turn(20)
    assert len(site.fleet.sent) == before
    assert site.replicas() == ["n1:backoff"]
    assert site.router.endpoints[-1] == ()
    assert site.router.status("m").state is ModelState.WAKING


async def test_a_replica_moves_after_crash_limit_failures(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"), values.inventory("n2"))
    (shard,) = site.fleet.nodes[N1].shards
    failure = Failure(cause=FailureCause.ENGINE_INTERNAL, message="it broke")
    site.fleet.enter(shard, ShardState.BACKOFF, failure=failure, restarts=5)
    await site.turn(2)
    await site.settle()
    assert site.replicas() == ["n2:ready"]
    assert site.fleet.nodes[N1].shards == {}


async def test_a_port_that_a_stranger_holds_is_not_given_out_again(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    (shard,) = site.fleet.nodes[N1].shards
    failure = Failure(cause=FailureCause.PORT_IN_USE, message="port 20000 is taken")
    site.fleet.enter(shard, ShardState.BACKOFF, failure=failure)
    await site.settle()
    (report,) = site.fleet.nodes[N1].shards.values()
    assert report.shard.state is ShardState.READY
    assert report.spec.ports == (20001,)


async def test_a_replica_is_withdrawn_drained_and_only_then_stopped(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    (endpoint,) = site.router.ids
    site.router.use(endpoint, in_flight=1)
    site.plane.set_catalog([])
    await site.turn()
    assert site.router.ids == []
    assert site.router.endpoints[-1][0].draining
    await site.turn(100, after_s=2.0)
    assert site.replicas() == ["n1:draining"]
    kinds = [type(command) for _, command in site.fleet.sent]
    assert kinds == [StartShard, DrainShard]
    site.router.use(endpoint, in_flight=0)
    await site.turn(2)
    assert type(site.fleet.sent[-1][1]) is StopShard
    await site.settle()
    assert site.replicas() == []
    assert site.router.endpoints[-1] == ()


async def test_a_drain_ends_at_its_limit(make_site: Callable[..., Any]) -> None:
    site = make_site(drain_limit=60.0)
    await site.serve([values.model("m")], values.inventory("n1"))
    site.router.use(site.router.ids[0], in_flight=1)
    site.plane.set_catalog([])
    await site.turn(40, after_s=2.0)
    assert type(site.fleet.sent[-1][1]) is StopShard


async def test_only_what_changed_is_touched(site: Any) -> None:
    keep = values.model("keep")
    await site.serve([keep, values.model("go")], values.inventory("n1"))
    kept = [item.id for item in site.router.endpoints[-1] if item.models == ("keep",)]
    site.plane.set_catalog([keep, values.model("new")])
    await site.settle(12)
    assert [item.models[0] for item in site.router.endpoints[-1]] == ["keep", "new"]
    assert kept[0] in site.router.ids
    touched = [str(getattr(command, "shard", "")) for _, command in site.fleet.sent]
    assert not any(name.startswith("keep") for name in touched)


async def test_a_bad_catalog_changes_nothing_and_says_why(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    bad = values.model("b", values.profile(engine="vlm"), values.profile("x", options={"no": 1}))
    with pytest.raises(ConfigError) as caught:
        site.plane.set_catalog([values.model("m"), bad, values.model("c", aliases=("m",))])
    paths = [problem.path for problem in caught.value.problems]
    assert paths == [
        "models[2]",
        "models[1].profiles[0].engine",
        "models[1].profiles[1].options.no",
    ]
    await site.settle()
    assert site.replicas() == ["n1:ready"]


async def test_weight_and_priority_reach_routers_without_a_new_replica(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    site.plane.set_catalog([values.model("m", values.profile(weight=0.5, priority=7))])
    await site.settle()
    (endpoint,) = site.router.endpoints[-1]
    assert (endpoint.weight, endpoint.priority) == (0.5, 7)
    assert len(site.fleet.nodes[N1].starts) == 1


async def test_a_new_version_comes_up_before_the_old_one_goes(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1", devices=2))
    served: list[bool] = []
    site.plane.set_catalog([values.model("m", values.profile(options={"tokens": 7}))])
    for _ in range(12):
        site.fleet.settle()
        await site.turn()
        served.append(bool(site.router.ids))
    assert all(served)
    (report,) = site.fleet.nodes[N1].shards.values()
    assert report.spec.options == {"tokens": 7}


async def test_without_room_the_old_version_goes_first(site: Any) -> None:
    first = values.model("m", values.profile(devices=1))
    await site.serve([first], values.inventory("n1", devices=1))
    site.plane.set_catalog([values.model("m", values.profile(devices=1, options={"tokens": 7}))])
    await site.settle(16)
    (report,) = site.fleet.nodes[N1].shards.values()
    assert report.spec.options == {"tokens": 7}
    assert report.shard.state is ShardState.READY


async def test_a_failed_new_version_leaves_the_old_one_serving(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    old = site.router.ids
    site.plane.set_catalog([values.model("m", values.profile(options={"tokens": 7}))])
    await site.turn(2)
    (new,) = (shard for shard in site.fleet.nodes[N1].shards if f"{old[0]}.0" != shard)
    failure = Failure(cause=FailureCause.BAD_OPTION, message="no such thing")
    site.fleet.enter(new, ShardState.FAILED, failure=failure)
    await site.settle()
    await site.turn(50, after_s=10.0)
    assert site.router.ids == old
    assert len(site.fleet.nodes[N1].shards) == 1
    assert len([1 for _, command in site.fleet.sent if type(command) is StartShard]) == 2


async def test_a_removed_model_is_not_stopped_before_every_router_confirms_it(site: Any) -> None:
    await site.serve([values.model("m"), values.model("n")], values.inventory("n1"))
    site.router.confirms = False
    site.plane.set_catalog([values.model("n")])
    await site.turn()
    withdrawn = site.router.serial
    assert not any(item.startswith("m") for item in site.router.ids)
    site.plane.set_catalog([values.model("n", aliases=("later",))])
    await site.turn(7)  # 3.5 s: above what proxies without a voice are given
    assert not stops(site)
    assert site.router.serial > withdrawn
    site.router.confirm(withdrawn)
    await site.turn(2)
    assert len(stops(site)) == 1


async def test_a_router_that_never_confirms_holds_up_no_stop_for_ever(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    site.router.confirms = False
    site.plane.set_catalog([])
    await site.turn(9)
    assert not stops(site)
    await site.turn(3)
    assert len(stops(site)) == 1


async def test_what_a_router_sent_before_it_confirmed_is_waited_for(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    (endpoint,) = site.router.ids
    site.router.use(endpoint, in_flight=1)
    site.plane.set_catalog([])
    await site.turn(20)
    assert not stops(site)
    site.router.use(endpoint)
    await site.turn(2)
    assert len(stops(site)) == 1


def stops(site: Any) -> list[Any]:
    return [command for _, command in site.fleet.sent if isinstance(command, StopShard)]


async def fail_rollout(site: Any) -> None:
    """Bring a second version of `m` to its end on `n1`, while the first one serves."""
    await site.serve([values.model("m")], values.inventory("n1"))
    (old,) = site.fleet.nodes[N1].shards
    site.plane.set_catalog([values.model("m", values.profile(options={"tokens": 7}))])
    await site.turn(2)
    (new,) = (shard for shard in site.fleet.nodes[N1].shards if shard != old)
    failure = Failure(cause=FailureCause.DISK_FULL, message="no room", hint="make some")
    site.fleet.enter(new, ShardState.FAILED, failure=failure)
    await site.settle()


async def test_an_operator_has_a_failed_rollout_tried_again_at_once(site: Any) -> None:
    await fail_rollout(site)
    refusal = site.plane.view.explain_model("m")
    assert refusal.code == "rollout_failed"
    assert "no room" in refusal.sentence
    assert site.plane.retry("m") == {N1}
    await site.settle()
    (report,) = site.fleet.nodes[N1].shards.values()
    assert report.spec.options == {"tokens": 7}
    assert site.replicas() == ["n1:ready"]
    assert site.plane.retry("m") == frozenset()


async def test_an_engine_between_two_attempts_is_replaced_at_once_where_asked(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1"))
    (first,) = site.fleet.nodes[N1].shards
    failure = Failure(cause=FailureCause.ENGINE_INTERNAL, message="it fell over")
    site.fleet.enter(first, ShardState.BACKOFF, failure=failure)
    await site.turn(4)
    assert site.replicas() == ["n1:backoff"]
    assert site.plane.retry("m") == {N1}
    await site.settle()
    assert site.replicas() == ["n1:ready"]
    assert first not in site.fleet.nodes[N1].shards


async def test_only_the_leader_tries_again(make_site: Callable[..., Any]) -> None:
    site = make_site()
    site.plane.set_catalog([values.model("m")])  # it has not had a turn, so it does not lead
    with pytest.raises(NotLeader):
        site.plane.retry("m")


async def test_a_silent_node_keeps_its_endpoints_until_a_replacement_is_ready(
    site: Any, clock: FakeClock
) -> None:
    await site.serve(
        [values.model("m")], *(values.inventory(name) for name in ("n1", "n2", "n3", "n4"))
    )
    (home,) = (node.id for node in site.fleet.nodes.values() if node.shards)
    before = site.router.ids
    site.fleet.cut(home)
    await site.turn(2)
    assert site.replicas() == [f"{home}:unreachable"]
    await site.turn(50, after_s=5.0)
    assert site.router.ids == before
    assert len(site.replicas()) == 1
    await site.turn(30, after_s=5.0)
    assert f"{home}:lost" in site.replicas()
    assert site.router.ids == before  # the replacement is not ready yet
    await site.settle()
    assert site.router.ids != before
    assert len(site.router.ids) == 1
    site.fleet.reconnect(home)
    await site.settle(12)
    assert len(site.router.ids) == 1
    assert site.fleet.nodes[home].shards == {}


async def test_a_refused_command_is_a_failure_of_that_place_with_its_reason(site: Any) -> None:
    await site.serve([values.model("m")], values.inventory("n1", devices=1))
    wanted = values.model("d", values.profile(devices=1))
    intruder = site.fleet.nodes[N1]
    spec = values.shard("stranger.0", devices=("n1-gpu0",), ports=(25000,))
    intruder.shards[ShardId("stranger.0")] = values.report("n1", spec)
    site.plane.set_catalog([values.model("m"), wanted])
    await site.turn(3)
    assert [item.code for item in intruder.rejections][:1] == ["device_busy"]
    refusal = site.router.status("d").refusal
    assert refusal is not None
    assert refusal.parts[0].parts[0].code in ("crash_loop", "devices_busy")


async def test_an_order_of_an_old_leadership_is_refused_by_nodes(site: Any) -> None:
    site.plane.set_catalog([values.model("m")])
    node = site.fleet.join(values.inventory("n1"))
    node.epoch = 10**12
    await site.turn(10)
    assert {item.code for item in node.rejections} == {"stale_epoch"}
    assert node.starts == []


async def test_what_a_replica_really_takes_is_learnt_for_the_next_start(site: Any) -> None:
    model = values.model("m", values.profile(devices=1))
    node = values.inventory("n1", devices=1)
    await site.serve([model], node)
    used = values.device("n1", 0, memory_used_mib=61000)
    site.fleet.join(values.inventory("n1", devices=(used,)))
    await site.turn(200, after_s=1.0)
    assert list(site.plane.learned.values()) == [61000.0]
    bare = values.model("m", values.profile(devices={"count": 1}))
    site.plane.set_catalog([bare])
    site.plane.publish_now()
    refusal = site.plane.view.explain_model("m")
    assert refusal.parts[0].parts[0].code == "devices_busy"  # its memory is known by now


async def test_heads_that_cannot_be_split_are_refused_on_any_fleet(site: Any) -> None:
    model = values.model("m", values.profile(devices=3, parallel={"tensor": 3}))
    site.plane.know_weights("path:/models/fake", WeightFacts(attention_heads=32))
    await site.serve([model], values.inventory("n1", devices=4))
    refusal = site.router.status("m").refusal
    assert refusal.parts[0].code == "tensor_indivisible"
    assert refusal.hint == "use parallel.tensor: 2"


async def test_what_a_node_reads_of_weights_is_known_and_places_them(site: Any) -> None:
    unknown = values.model("m", values.profile(devices={"count": 1}))
    await site.serve([unknown], values.inventory("n1", devices=1))
    assert "memory_unknown" in str(site.plane.view.explain_model("m"))
    facts = WeightFacts(weights_mib=16_000, kv_bytes_per_token=131_072, max_context=8192)
    cached = CachedWeights(ref="path:/models/fake", size_bytes=1, facts=facts)
    site.fleet.join(values.inventory("n1", devices=1, weights=(cached,)))
    await site.settle()
    assert site.replicas() == ["n1:ready"]
