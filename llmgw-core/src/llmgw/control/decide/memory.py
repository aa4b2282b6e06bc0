"""What a planner keeps from one pass for the next: it saves work and changes no decision.

Of a large fleet little differs between two looks. Accounts and index are brought up to date
instead of being made afresh, and a model that was at rest is not looked at again before something
that it depends on has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from llmgw.control.decide.accounts import Accounts, NodeAccount
from llmgw.control.decide.examine import examine
from llmgw.control.decide.index import FleetIndex
from llmgw.control.decide.need import Need
from llmgw.control.decide.roles import Roles
from llmgw.control.decide.snapshot import ClusterSnapshot, Limits, ReplicaRecord
from llmgw.domain.catalog import Model
from llmgw.domain.ids import ModelName, NodeId, ProfileName
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import ReplicaState
from llmgw.domain.weights import WeightFacts

_Ground = tuple[
    Limits,
    Mapping[ModelName, Mapping[ProfileName, str]],
    frozenset[NodeId],
    Mapping[str, WeightFacts],
]


@dataclass(slots=True)
class _Codes:
    """Why nodes could not take a shard: of each account, as it was at this version of it."""

    need: Need
    found: list[tuple[NodeAccount, int, str | None]]


@dataclass(frozen=True, slots=True)
class Rest:
    """A model for which there was nothing to do."""

    model: Model
    records: Sequence[ReplicaRecord]
    follows_load: Sequence[tuple[Model, Roles]]
    """Each part and its replicas, where load may ask for another number of them."""


class Memory:
    """Of one planner, which plans one snapshot after the other."""

    def __init__(self) -> None:
        self._accounts: Accounts | None = None
        self._index: FleetIndex | None = None
        self._ground: _Ground | None = None  #: what the rest of every model rests on
        self._at_rest: dict[ModelName, Rest] = {}
        self._codes: dict[tuple[ModelName, ProfileName], _Codes] = {}

    def accounts_of(self, snapshot: ClusterSnapshot) -> tuple[Accounts, FleetIndex]:
        """Return accounts and index as they would be made of this snapshot."""
        if self._accounts is None:
            self._accounts = Accounts(snapshot)
        elif (changed := self._accounts.follow(snapshot)) is not None and self._index is not None:
            self._index.refresh(changed)
            return self._accounts, self._index
        self._index = FleetIndex(self._accounts)
        return self._accounts, self._index

    def begin(self, snapshot: ClusterSnapshot) -> None:
        """Begin a pass: forget which models were at rest if it rested on something else."""
        draining = frozenset([name for name, node in snapshot.nodes.items() if node.draining])
        ground = (snapshot.limits, snapshot.hashes, draining, snapshot.facts)
        before, self._ground = self._ground, ground
        if before != self._ground:
            self._at_rest.clear()
            self._codes.clear()

    def rest_of(self, model: Model, records: Sequence[ReplicaRecord]) -> Rest | None:
        """Return that a pass has found nothing to do for exactly this, if it has.

        Equal is not enough: a node that registers anew may be able to do what it could not.
        """
        before = self._at_rest.get(model.name)
        if before is None or before.model is not model or len(before.records) != len(records):
            return None
        return before if all(map(is_, before.records, records)) else None

    def note_rest(
        self,
        model: Model,
        records: Sequence[ReplicaRecord],
        parts: Sequence[tuple[Model, Roles]],
    ) -> None:
        """Remember that there was nothing to do for a model, if time alone does not change that.

        What is on its way, sleeps or is silent depends on more than its record.
        """
        if all(item.replica.state is ReplicaState.READY for item in records):
            follows_load = any(scale.min != scale.max for scale in model.scales)
            self._at_rest[model.name] = Rest(model, records, parts if follows_load else ())

    def codes(self, need: Need, accounts: Accounts) -> Iterator[tuple[NodeAccount, str | None]]:
        """Yield every node with the code of why it cannot take a shard; None: it can.

        What does not fit is tried again whenever anything has changed, and then only that has to
        be looked at.
        """
        key = (need.model.name, need.profile.name)
        known = self._codes.get(key)
        if known is None or known.need != need or len(known.found) != len(accounts.nodes):
            known = _Codes(need, [(account, -1, None) for account in accounts.nodes.values()])
            self._codes[key] = known
        for account in accounts.nodes.values():
            before, version, code = known.found[account.index]
            if before is not account or version != account.version:
                answer = examine(accounts, account, need)
                code = answer.code if isinstance(answer, Refusal) else None
                known.found[account.index] = (account, account.version, code)
            yield account, code
