"""Which nodes may take a shard, found by set arithmetic instead of by looking at each.

Node number i of the fleet is bit i of an integer, so "pool chat, has vLLM, at least two H100
free" is three ANDs of thousand-bit numbers. The answer may hold a node too many (ports, strangers'
memory and avoidance are left to `examine`), never one too few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from llmgw.control.decide.accounts import Accounts, NodeAccount, Shape
from llmgw.control.decide.need import ROLES, Need
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import ModelName, NodeId
from llmgw.domain.nodes import NodeState

Key = TypeVar("Key")


class FleetIndex:
    """Bit sets over the nodes of some accounts; `update` keeps them true while a plan grows."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.order: list[NodeAccount] = list(accounts.nodes.values())
        self.open = 0  #: ready, and neither an operator nor its agent keeps replicas off
        self.pools: defaultdict[str, int] = defaultdict(int)
        self.labels: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.fabrics: defaultdict[str, int] = defaultdict(int)
        self.engines: defaultdict[tuple[str, str | None], int] = defaultdict(int)
        self.weights: defaultdict[str, int] = defaultdict(int)
        self.models: defaultdict[ModelName, int] = defaultdict(int)
        self.crowds: defaultdict[int, int] = defaultdict(int)  #: by number of replicas
        #: Nodes by shape and exact count of its devices that are free.
        self._free: defaultdict[Shape, defaultdict[int, int]] = defaultdict(
            lambda: defaultdict(int)
        )
        self._counts: list[dict[Shape, int]] = [{} for _ in self.order]
        self._crowd: list[int] = [0] * len(self.order)
        #: What else each node is listed under, so that it can be taken out again.
        self._listed: list[list[tuple[defaultdict[Any, int], Any]]] = [[] for _ in self.order]
        for account in self.order:
            self._add(account)

    def refresh(self, changed: Iterable[NodeAccount]) -> None:
        """Take in accounts that were opened again."""
        for account in changed:
            bit = 1 << account.index
            self.order[account.index] = account
            self.open &= ~bit
            for nodes, key in self._listed[account.index]:
                nodes[key] &= ~bit
            self._listed[account.index].clear()
            self._add(account)

    def _add(self, account: NodeAccount) -> None:
        record, inventory = account.record, account.inventory
        is_kept_off = record.cordoned or record.draining or inventory.leaving
        if record.state is NodeState.READY and not is_kept_off:
            self.open |= 1 << account.index
        self._list(account, self.pools, [inventory.pool])
        self._list(account, self.labels, inventory.labels.items())
        self._list(account, self.fabrics, inventory.fabric)
        for engine in inventory.engines:
            versions = ((engine.engine, None), (engine.engine, engine.version))
            self._list(account, self.engines, versions)
        for item in inventory.installable:
            self._list(account, self.engines, ((item.engine, item.version),))
        self._list(account, self.weights, [weights.ref for weights in inventory.weights])
        self._list(account, self.models, [key for key, count in account.models.items() if count])
        self._recount(account)

    def _list(
        self, account: NodeAccount, nodes: defaultdict[Key, int], keys: Iterable[Key]
    ) -> None:
        for key in keys:
            nodes[key] |= 1 << account.index
            self._listed[account.index].append((nodes, key))

    def _recount(self, account: NodeAccount) -> None:
        """Move the node to where its free devices and its number of replicas put it."""
        bit, index = 1 << account.index, account.index
        before, now = self._counts[index], account.sound
        if before != now:
            for shape in before.keys() | now.keys():
                was, count = before.get(shape, 0), now.get(shape, 0)
                if was != count:
                    self._free[shape][was] &= ~bit
                    self._free[shape][count] |= bit
            self._counts[index] = dict(now)
        self.crowds[self._crowd[index]] &= ~bit
        self.crowds[account.replicas] |= bit
        self._crowd[index] = account.replicas

    def update(self, node: NodeId, spec: ShardSpec) -> None:
        """Take note that `spec` has been booked on, or released from, the node."""
        for account in self.accounts.twins(node):
            self._recount(account)
        account = self.accounts.nodes[node]
        if account.models[spec.model] > 0:
            self._list(account, self.models, [spec.model])
        else:
            self.models[spec.model] &= ~(1 << account.index)

    def eligible(self, need: Need) -> int:
        """Return the nodes that may take a shard as far as nothing booked is concerned."""
        found = self.open & self.pools.get(need.profile.pool, 0)
        for item in need.profile.labels.items():
            found &= self.labels.get(item, 0)
        if need.node_fabric is not None:
            found &= self.fabrics.get(need.node_fabric, 0)
        if need.engine is None:
            return 0
        profile = need.profile
        if profile.version not in need.engine.installable and profile.command is None:
            found &= self.engines.get((need.profile.engine, need.profile.version), 0)
        if need.profile.role is not None:
            for known in self.accounts.nodes.values():
                if ROLES not in known.inventory.capabilities:
                    found &= ~(1 << known.index)
        for node in need.avoided:
            if (account := self.accounts.nodes.get(node)) is not None:
                found &= ~(1 << account.index)
        return found

    def levels(self, need: Need) -> list[int]:
        """Return eligible nodes with room, the fullest first, in groups that are equally full."""
        found = self.eligible(need)
        if not found:
            return []
        if need.devices == 0:
            return [
                group
                for count in sorted(self.crowds, reverse=True)
                if (group := self.crowds[count] & found)
            ]
        levels: defaultdict[int, int] = defaultdict(int)
        for shape, by_count in self._free.items():
            if not need.fits(shape):
                continue
            for count, nodes in by_count.items():
                if count >= need.devices and (group := nodes & found):
                    levels[count] |= group
        return [levels[count] for count in sorted(levels)]

    def preferred(self, group: int, need: Need) -> Iterator[NodeAccount]:
        """Yield a group's nodes: those with weights, then those without the model, then by id."""
        with_weights = self.weights.get(need.profile.weights, 0)
        with_model = self.models.get(need.model.name, 0)
        for part in (
            group & with_weights & ~with_model,
            group & ~with_weights & ~with_model,
            group & with_model,
        ):
            yield from self.members(part)

    def members(self, nodes: int) -> Iterator[NodeAccount]:
        """Yield the nodes of a set by id."""
        while nodes:
            low = nodes & -nodes
            yield self.order[low.bit_length() - 1]
            nodes ^= low
