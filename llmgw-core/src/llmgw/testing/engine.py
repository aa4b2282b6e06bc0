"""The contract of engine adapters as tests, and an adapter for the fake engine.

    from llmgw.testing.engine import EngineContract, profile

    class TestMine(EngineContract):
        adapter = MyAdapter()
        accepted = (profile("mine", options={"context": 4096}),)
        rejected = ((profile("mine", options={"contxt": 4096}), "options.contxt"),)
        metrics_pages = (Path(__file__).with_name("metrics.txt").read_text(),)
        exits = (ended(1, "out of memory"),)

Every test runs with a guard that fails on any I/O: an adapter describes, the agent acts.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.contracts.engine import (
    Assignment,
    EngineAdapter,
    EngineExit,
    KnowsBatchSize,
    Launch,
    LoadsAdapters,
    MetricsUnreadable,
    ReportsMemory,
    Sleeps,
)
from llmgw.contracts.pairing import Pairs, SharedRequest
from llmgw.domain.catalog import Profile
from llmgw.domain.ids import safe_name_problem
from llmgw.testing.launching import CREDENTIAL, assignments, ended, profile
from llmgw.testing.no_io import no_io

__all__ = ["CREDENTIAL", "EngineContract", "assignments", "ended", "no_io", "profile"]

_FOREIGN_PAGES = (
    "",
    "\n",
    "<html><body>502 Bad Gateway</body></html>\n",
    "# TYPE acme_requests_active gauge\nacme_requests_active 55\n",
)
_LOADER_VARIABLE = re.compile(r"LD_|PYTHON|PATH$|DYLD_")


class EngineContract:
    """Subclass it, give the five class variables, and pytest finds the rest."""

    adapter: ClassVar[EngineAdapter]
    accepted: ClassVar[tuple[Profile, ...]]  #: profiles without a problem; several nodes too
    rejected: ClassVar[tuple[tuple[Profile, str], ...]]  #: profile, path of its problem
    metrics_pages: ClassVar[tuple[str, ...]]  #: as real engines served them
    exits: ClassVar[tuple[EngineExit, ...]]  #: ends that the adapter should recognise

    def test_its_name_can_be_written_in_a_profile(self) -> None:
        assert safe_name_problem(self.adapter.name) is None

    def test_its_traits_make_sense(self) -> None:
        traits = self.adapter.traits
        assert traits.ports_per_shard >= 1
        assert traits.stop_grace_s > 0
        assert traits.health_path.startswith("/")
        assert traits.metrics_path is None or traits.metrics_path.startswith("/")
        assert traits.devices or traits.runs_on_cpu

    def test_accepted_profiles_have_no_problem(self) -> None:
        for item in self.accepted:
            with no_io():
                assert self.adapter.check(item) == ()

    def test_rejected_profiles_have_a_problem_where_it_is(self) -> None:
        for item, path in self.rejected:
            with no_io():
                problems = self.adapter.check(item)
            assert path in [problem.path for problem in problems]
            assert all(problem.message for problem in problems)

    def test_an_unknown_option_is_a_problem(self) -> None:
        for item in self.accepted:
            odd = item.model_copy(update={"options": {**item.options, "no_such_option_": 1}})
            assert "options.no_such_option_" in [p.path for p in self.adapter.check(odd)]

    def test_a_variable_that_loads_code_is_a_problem(self) -> None:
        for item in self.accepted:
            for name in ("LD_PRELOAD", "PYTHONPATH", "PATH"):
                odd = item.model_copy(update={"env": {**item.env, name: "/tmp/x"}})  # noqa: S108
                assert f"env.{name}" in [p.path for p in self.adapter.check(odd)]

    def test_a_check_changes_nothing_and_says_the_same_again(self) -> None:
        for item in (*self.accepted, *(item for item, _ in self.rejected)):
            before = copy.deepcopy(item)
            assert self.adapter.check(item) == self.adapter.check(item)
            assert item == before

    def test_launches_are_lists_of_words_without_secrets(self) -> None:
        for assignment, launch in self._launches():
            assert launch.argv
            assert {type(word) for word in launch.argv} == {str}
            assert not any("\0" in word for word in launch.argv)
            assert not any(CREDENTIAL in word for word in launch.argv)
            for name, value in launch.env.items():
                assert type(value) is str
                assert CREDENTIAL not in value or name in launch.secret_env
            assert launch.secret_env <= set(launch.env)
            if launch.ready is not None:
                assert assignment.weights_path in " ".join(launch.argv)

    def test_an_engine_that_serves_asks_for_the_key(self) -> None:
        for _, launch in self._launches():
            if launch.ready is not None:
                assert CREDENTIAL in launch.env.values()

    def test_the_environment_chooses_no_code(self) -> None:
        for _, launch in self._launches():
            assert [name for name in launch.env if _LOADER_VARIABLE.match(name)] == []

    def test_the_address_and_the_port_are_those_of_the_assignment(self) -> None:
        for assignment, launch in self._launches():
            if launch.ready is not None:
                words = " ".join(launch.argv)
                assert str(assignment.spec.ports[0]) in words
                assert assignment.bind_address in words

    def test_no_port_is_used_that_was_not_given(self) -> None:
        for assignment, launch in self._launches():
            shards = assignment.spec.peers
            ours = {port for shard in shards for port in shard.ports} | {*assignment.spec.ports}
            # Assignments made for tests have ports from 20000 up; options should stay below.
            used = {int(port) for port in re.findall(r"\b2\d{4}\b", " ".join(launch.argv))}
            assert used <= ours

    def test_exactly_the_serving_rank_is_probed(self) -> None:
        for assignment, launch in self._launches():
            serves = assignment.spec.rank == self.adapter.traits.serves_on_rank
            assert (launch.ready is not None) == serves
            if serves:
                assert launch.warm_up, "health alone does not prove that the model answers"
                assert {*launch.expect_models} <= {*assignment.spec.served_names}
                assert launch.expect_models

    def test_only_the_router_says_whose_cache_a_decode_engine_reads(self) -> None:
        if not isinstance(self.adapter, Pairs):
            return
        pairing = self.adapter.pairing
        asked = SharedRequest(
            path="/v1/chat/completions", copies=1, host="10.0.0.1", meeting_port=20001, number=7
        )
        with no_io():
            halves = pairing.share(asked)
        assert halves is not None
        assert halves == pairing.share(asked)
        assert {*(halves.decode or ())} <= pairing.reserved
        assert pairing.reserved & {*halves.prefill}, "the prefill engine is told nothing"

    def test_the_same_assignment_is_launched_the_same_way(self) -> None:
        for assignment, launch in self._launches():
            assert self.adapter.launch(copy.deepcopy(assignment)) == launch

    def test_served_pages_are_read(self) -> None:
        for page in self.metrics_pages:
            with no_io():
                load = self.adapter.read_load(page)
            assert load.running is not None
            assert load.running >= 0
            assert load.kv_used is None or 0.0 <= load.kv_used <= 1.0

    def test_other_pages_do_not_read_as_an_idle_engine(self) -> None:
        for page in _FOREIGN_PAGES:
            with pytest.raises(MetricsUnreadable):
                self.adapter.read_load(page)

    def test_numbers_that_are_none_do_not_read_as_zero(self) -> None:
        for page in self.metrics_pages:
            for number in ("NaN", "+Inf", "-1"):
                spoilt = re.sub(r"(?m)^([^#\n]+?) [^ \n]+$", rf"\1 {number}", page)
                with pytest.raises(MetricsUnreadable):
                    self.adapter.read_load(spoilt)

    def test_a_page_that_was_cut_off_is_unreadable_or_right(self) -> None:
        for page in self.metrics_pages:
            whole = self.adapter.read_load(page)
            for share in range(1, 40):
                try:
                    part = self.adapter.read_load(page[: len(page) * share // 40])
                except MetricsUnreadable:
                    continue
                assert (part.running, part.waiting) == (whole.running, whole.waiting)

    def test_known_ends_are_recognised(self) -> None:
        for end in self.exits:
            with no_io():
                failure = self.adapter.explain_exit(end)
            assert failure.cause is not failure.cause.UNKNOWN, end.tail

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        exit_code=st.one_of(st.none(), st.integers(-64, 255)),
        head=st.lists(st.text(), max_size=4),
        tail=st.lists(st.text(), max_size=8),
        was_ready=st.booleans(),
    )
    def test_any_end_is_explained_in_one_line(
        self, exit_code: int | None, head: list[str], tail: list[str], was_ready: bool
    ) -> None:
        end = dataclasses.replace(
            ended(exit_code, *tail, head=tuple(head), was_ready=was_ready), exit_code=exit_code
        )
        failure = self.adapter.explain_exit(end)
        assert failure.message.strip()
        assert len(failure.message.splitlines()) == 1
        assert failure.exit_code == exit_code

    def test_optional_abilities_do_no_io(self) -> None:
        for assignment, _ in self._launches():
            with no_io():
                if isinstance(self.adapter, KnowsBatchSize):
                    size = self.adapter.batch_size(assignment.spec)
                    assert size is None or size >= 1
                if isinstance(self.adapter, ReportsMemory):
                    assert self.adapter.read_memory(("nothing of the kind",)) is None
                if isinstance(self.adapter, Sleeps):
                    for level in (1, 2):
                        probes = (
                            *self.adapter.sleep_requests(assignment.spec, level),
                            *self.adapter.wake_requests(assignment.spec, level),
                        )
                        assert all(probe.path.startswith("/") for probe in probes)
                    state = self.adapter.sleep_state
                    assert state is None or state.path.startswith("/")
                    assert state is None or self.adapter.read_sleep_state("{}") is None

    def test_adapters_come_and_go_by_requests_with_their_names(self) -> None:
        if not isinstance(self.adapter, LoadsAdapters):
            return
        for assignment, _ in self._launches():
            with no_io():
                load = self.adapter.load_adapter("sql", "/weights/sql")
                drop = self.adapter.unload_adapter("sql")
                told = self.adapter.adapter_model(assignment.spec, "sql")
                with pytest.raises(ValueError, match=r".+"):
                    self.adapter.read_adapters(assignment.spec, "{}")
            assert {"sql", "/weights/sql"} <= {*(load.body or {}).values()}
            assert "sql" in (drop.body or {}).values()
            assert "sql" in told
            assert self.adapter.adapter_list.path.startswith("/")

    def _launches(self) -> Iterator[tuple[Assignment, Launch]]:
        for item in self.accepted:
            for assignment in assignments(
                item, ports_per_shard=self.adapter.traits.ports_per_shard
            ):
                with no_io():
                    launch = self.adapter.launch(assignment)
                yield assignment, launch
