"""Where a replica goes: feasibility and accounts first, then the policy ranks what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from llmgw.contracts.placement import (
    Candidate,
    NodeOffer,
    PlacementPolicy,
    PlacementRequest,
    Score,
    Verdict,
    Veto,
)
from llmgw.control.decide.accounts import NodeAccount
from llmgw.control.decide.codes import RefusalCode as Code
from llmgw.control.decide.examine import examine, free_ram_mib, has_engine, has_weights
from llmgw.control.decide.memory import Memory
from llmgw.control.decide.need import Need, need_of
from llmgw.control.decide.parts import named
from llmgw.control.decide.refusals import (
    gang_too_small,
    impossible,
    nearness,
    nowhere,
    refusal,
    vetoed,
)
from llmgw.control.decide.snapshot import ClusterSnapshot, ReplicaRecord
from llmgw.control.decide.specs import make_specs
from llmgw.domain.catalog import Model, Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import DeviceId, ModelName, NodeId, ProfileName, ReplicaId
from llmgw.domain.nodes import NodeInventory
from llmgw.domain.plans import Refusal
from llmgw.domain.replicas import ReplicaState

#: Candidates that a policy is shown: enough to choose from, few enough to rank in a millisecond.
SHORTLIST = 16
#: Nodes of one code that a refusal spells out; the others are counted.
SPELT_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One replica's shards, booked in the accounts that it was placed with."""

    profile: Profile
    shards: tuple[tuple[NodeId, ShardSpec], ...]
    because: str


@dataclass(frozen=True, slots=True)
class _Offer:
    account: NodeAccount
    devices: tuple[DeviceId, ...]


class Placer:
    """Places replica after replica into the same accounts."""

    def __init__(
        self, snapshot: ClusterSnapshot, policy: PlacementPolicy, memory: Memory | None = None
    ) -> None:
        """memory: of the planner that asks; None begins with new accounts."""
        self.snapshot = snapshot
        self.policy = policy
        self._memory = memory or Memory()
        self.accounts, self.index = self._memory.accounts_of(snapshot)
        self._has_lent = False
        self._needs: dict[tuple[ModelName, ProfileName], Need] = {}
        self._considered_for: Need | None = None
        self._considered: dict[NodeId, tuple[int, Candidate | None]] = {}

    def need(self, model: Model, profile: Profile) -> Need:
        """Return what a replica of the profile asks for."""
        key = (model.name, profile.name)
        if (known := self._needs.get(key)) is None:
            known = self._needs[key] = need_of(self.snapshot, model, profile)
        return known

    def place(self, need: Need, replica: ReplicaId) -> Placement | Refusal:
        """Book and return the best place for one replica of a profile, or why there is none."""
        if (never := impossible(need)) is not None:
            return never
        candidates = self._candidates(need)
        if not candidates:
            return self.explain(need, spelt_out=SPELT_OUT)
        request = PlacementRequest(model=need.model, profile=need.profile)
        verdicts = self._rank(request, candidates)
        best: tuple[float, Candidate, str] | None = None
        for candidate, verdict in zip(candidates, verdicts, strict=True):
            # Candidates come by node id within equal rank: the first of equals wins.
            if isinstance(verdict, Score) and (best is None or verdict.value > best[0]):
                best = (verdict.value, candidate, verdict.because)
        if best is None:
            return self._vetoed(need, candidates, verdicts)
        specs = make_specs(self.accounts, need, best[1], replica)
        for node, spec in specs:
            self.book(node, spec)
        return Placement(
            profile=need.profile, shards=specs, because=f"{self.policy.name}: {best[2]}"
        )

    def book(self, node: NodeId, spec: ShardSpec) -> None:
        """Give the shard its room."""
        self.accounts.book(node, spec)
        self.index.update(node, spec)

    def restore(self, node: NodeId, spec: ShardSpec) -> None:
        """Undo `release`."""
        self.accounts.take(node, spec)
        if node in self.accounts.nodes:
            self.index.update(node, spec)

    def release(self, node: NodeId, spec: ShardSpec) -> None:
        """Give its room back."""
        self.accounts.release(node, spec)
        if node in self.accounts.nodes:
            self.index.update(node, spec)

    def lend(self) -> bool:
        """Offer what sleeping replicas hold, once; return whether there is any."""
        if self._has_lent:
            return False
        self._has_lent = True
        asleep = [
            item for item in self.snapshot.replicas if item.replica.state is ReplicaState.SLEEPING
        ]
        for record in asleep:
            for node, spec in record.shards:
                self.accounts.lend(node, spec)
                if node in self.accounts.nodes:
                    self.index.update(node, spec)
        return bool(asleep)

    def wake(self, record: ReplicaRecord) -> bool:
        """Book the devices of a sleeping replica for itself; False if somebody uses them."""
        if not all(self.accounts.can_wake(node, spec) for node, spec in record.shards):
            return False
        for node, spec in record.shards:
            self.accounts.wake(node, spec)
            self.index.update(node, spec)
        return True

    def can_place(self, need: Need) -> bool:
        """Return whether one replica of the profile has a place now."""
        return bool(self._candidates(need))

    def explain(self, need: Need, *, spelt_out: int | None = None) -> Refusal:
        """Return why the profile has no place now, per node, the nearest first.

        spelt_out: nodes named per code; None names all. A node that could take one shard of a
        gang has no part.
        """
        if (never := impossible(need)) is not None:
            return never
        reasons: dict[str, list[NodeAccount]] = {}
        willing: list[NodeAccount] = []
        for account, code in self._memory.codes(need, self.accounts):
            if code is None:
                willing.append(account)
            else:
                reasons.setdefault(code, []).append(account)
        parts: list[Refusal] = []
        for code in sorted(reasons, key=nearness):
            named = reasons[code][:spelt_out]
            answers = (examine(self.accounts, account, need) for account in named)
            parts += (answer for answer in answers if isinstance(answer, Refusal))
            if rest := len(reasons[code]) - len(named):
                parts.append(
                    refusal(need, None, code, f"the same of {rest} more node{'s'[: rest > 1]}")
                )
        if need.shards > 1 and willing:
            return gang_too_small(need, willing, tuple(parts))
        return nowhere(need, len(self.accounts.nodes), tuple(parts))

    def _rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Verdict]:
        """Return the policy's verdicts; vetoes that say so if it cannot give them.

        It may be a plugin's, and its mistake must not end the server that runs everything else.
        """
        try:
            verdicts = list(self.policy.rank(request, candidates))
        except Exception as error:
            mistake = f"{type(error).__name__}: {error}"
        else:
            if len(verdicts) == len(candidates) and all(
                isinstance(verdict, Score | Veto) for verdict in verdicts
            ):
                return verdicts
            mistake = f"it did not give one verdict for each of {len(candidates)} places"
        failed = Veto(Code.POLICY_VETO, f"policy {self.policy.name} failed: {mistake}")
        return [failed] * len(candidates)

    def _vetoed(
        self, need: Need, candidates: Sequence[Candidate], verdicts: Sequence[Verdict]
    ) -> Refusal:
        vetoes = [
            (self.accounts.nodes[candidate.offers[0].node], verdict)
            for candidate, verdict in zip(candidates, verdicts, strict=True)
            if isinstance(verdict, Veto)
        ]
        return vetoed(need, self.policy.name, vetoes)

    def _candidates(self, need: Need) -> list[Candidate]:
        if need.shards > 1:
            return self._gangs(need)
        found: list[Candidate] = []
        for account in self._shortlist(need):
            if (candidate := self._consider(account, need)) is not None:
                found.append(candidate)
                if len(found) == SHORTLIST:
                    break
        return sorted(found, key=lambda item: item.offers[0].node)

    def _consider(self, account: NodeAccount, need: Need) -> Candidate | None:
        """Return what the node offers for one shard, None for nothing.

        The next replica of the profile is shown mostly the same nodes, as they were.
        """
        if need is not self._considered_for:
            self._considered_for = need
            self._considered.clear()
        known = self._considered.get(account.id)
        if known is None or known[0] != account.version:
            devices = examine(self.accounts, account, need)
            candidate = None
            if not isinstance(devices, Refusal):
                candidate = Candidate(offers=(self._offer(_Offer(account, devices), need),))
            known = self._considered[account.id] = (account.version, candidate)
        return known[1]

    def _shortlist(self, need: Need) -> Iterator[NodeAccount]:
        """Yield nodes with room, alternately from the fullest and from the emptiest.

        Policies want one end or the other. Within a level nodes differ only in what
        `preferred` orders by, so each level needs but a few of its nodes to be shown.
        """
        levels = self.index.levels(need)
        ends = [
            level
            for pair in zip_longest(levels, reversed(levels))
            for level in pair
            if level is not None
        ]
        seen: set[NodeId] = set()
        walks = [self.index.preferred(level, need) for level in dict.fromkeys(ends)]
        rounds = zip_longest(*walks)
        for account in chain.from_iterable(rounds):
            if account is not None and account.id not in seen:
                seen.add(account.id)
                yield account

    def _gangs(self, need: Need) -> list[Candidate]:
        """Return one candidate per set of nodes that share a fabric and all have room at once."""
        groups: dict[tuple[str, str], dict[str, _Offer]] = {}
        for account in chain.from_iterable(
            self.index.members(level) for level in self.index.levels(need)
        ):
            machine = account.record.machine
            open_ = [
                offers
                for item in _fabrics(account.inventory, need)
                # A gang spans machines: a second agent on one of them adds nothing.
                if len(offers := groups.setdefault(item, {})) < need.shards
                and machine not in offers
            ]
            if not open_:
                continue
            devices = examine(self.accounts, account, need)
            if not isinstance(devices, Refusal):
                for offers in open_:
                    offers[machine] = _Offer(account, devices)
        found: list[Candidate] = []
        for _, offers in sorted(groups.items()):
            if len(offers) == need.shards:
                chosen = sorted(offers.values(), key=lambda offer: offer.account.id)
                found.append(Candidate(offers=tuple(self._offer(item, need) for item in chosen)))
        return found

    def _offer(self, offer: _Offer, need: Need) -> NodeOffer:
        account = offer.account
        devices = {item.id: item for item in account.inventory.devices}
        offered = [devices[item] for item in offer.devices]
        fitting = [item for item in account.free if need.matches(account.shapes[item])]
        memory: int | None = 0
        for device in offered:
            demand = need.demand_on(device.kind)
            if device.memory_mib is None or demand is None or memory is None:
                memory = None
            else:
                memory += int(device.memory_mib - demand.memory_mib)
        free_ram = free_ram_mib(account)
        return NodeOffer(
            node=account.id,
            devices=offer.devices,
            free_devices=len(fitting) if need.devices else 0,
            total_devices=len(account.inventory.devices),
            free_memory_mib=memory if offered else None,
            free_ram_mib=None if free_ram is None else int(free_ram),
            same_model=account.models[need.model.name],
            replicas=account.replicas,
            has_weights=has_weights(account, need),
            has_engine=has_engine(account, need),
            islands=frozenset(item.island for item in offered if item.island is not None),
            fabric=account.inventory.fabric,
            labels=account.inventory.labels,
        )


def _fabrics(inventory: NodeInventory, need: Need) -> Iterator[tuple[str, str]]:
    for key, value in inventory.fabric.items():
        if not key.endswith(".address") and need.node_fabric in (None, key):
            yield key, value


def place_model(
    placer: Placer, model: Model, profiles: Sequence[Profile], replica: ReplicaId
) -> Placement | Refusal:
    """Try the profiles in this order; return the first place, or the tree of reasons."""
    parts: list[Refusal] = []
    for profile in profiles:
        answer = placer.place(placer.need(model, profile), replica)
        if isinstance(answer, Placement):
            return answer
        parts.append(answer)
    return unplaced(model, parts)


def unplaced(model: Model, parts: Sequence[Refusal]) -> Refusal:
    """Return the root of a model's tree: the first profile's words, all profiles below."""
    if not parts:
        return Refusal(
            code=Code.NO_PROFILE,
            sentence=f"{model.name} declares no profile",
            model=model.name,
            hint="add a profile to the entry, or a static endpoint that serves it",
        )
    first = parts[0]
    return Refusal(
        code=Code.UNPLACED,
        sentence=f"{named(model)} cannot run now: {first.sentence}",
        model=model.name,
        need=first.need,
        have=first.have,
        hint=first.hint,
        parts=tuple(parts),
    )
