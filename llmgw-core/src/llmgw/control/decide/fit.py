"""How much device memory a shard needs: configured, learned or computed, never guessed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum

from llmgw.domain.catalog import Profile
from llmgw.domain.weights import WeightFacts

#: In place of a device's kind: main memory, of an engine that has no device.
MAIN_MEMORY = "cpu"
#: Room for what differs between two starts of the same thing.
LEARNED_MARGIN = 1.05
#: MiB per process besides weights and cache: driver context, captured graphs, activation peak,
#: communication buffers. Upper ends of what the engines' start-up reports show.
OVERHEAD_MIB = {"vllm": 3584.0, "sglang": 3584.0, "llamacpp": 1024.0}
OVERHEAD_UNKNOWN_MIB = 4096.0
#: Names under which engines take the longest context.
CONTEXT_OPTIONS = ("max_model_len", "context_length", "ctx_size", "n_ctx")

#: Names under which they take the type of the cache.
CACHE_TYPE_OPTIONS = ("kv_cache_dtype", "cache_type_k")


class DemandSource(StrEnum):
    """Where a figure comes from, the most trusted first."""

    CONFIGURED = "configured"
    LEARNED = "learned"
    COMPUTED = "computed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Memory on each device."""

    memory_mib: float
    source: DemandSource
    because: str


def learned_key(profile: Profile, kind: str) -> str:
    """Return the key under which the measured use of this profile on this kind of device is kept."""
    text = json.dumps(
        [
            profile.weights,
            profile.engine,
            profile.version,
            dict(profile.options),
            profile.parallel.model_dump(),
            kind,
        ],
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def demand(
    profile: Profile, *, facts: WeightFacts | None, learned_mib: float | None
) -> Demand | None:
    """Return what each device must have free; None: not known, so placement must refuse.

    What the operator wrote wins over what was measured, which wins over what the files say.
    """
    if profile.devices.memory_gib is not None:
        return Demand(
            memory_mib=profile.devices.memory_gib * 1024,
            source=DemandSource.CONFIGURED,
            because=f"devices.memory_gib is {profile.devices.memory_gib:g}",
        )
    if learned_mib is not None:
        return learned_demand(learned_mib)
    if facts is None or facts.weights_mib is None:
        return None
    context = context_tokens(profile, facts)
    if context is None or facts.kv_bytes_per_token is None:
        return None
    split = profile.parallel.tensor * profile.parallel.pipeline
    weights_mib = facts.weights_mib / split
    cache_mib = kv_cache_mib(facts, context, token_share=cache_share(profile)) / split
    overhead_mib = OVERHEAD_MIB.get(profile.engine, OVERHEAD_UNKNOWN_MIB)
    return Demand(
        memory_mib=weights_mib + cache_mib + overhead_mib,
        source=DemandSource.COMPUTED,
        because=(
            f"weights {weights_mib:.0f} + cache of {context} tokens {cache_mib:.0f} "
            f"+ overhead {overhead_mib:.0f} MiB"
        ),
    )


def learned_demand(learned_mib: float) -> Demand:
    """Return the demand of something that took so much when it ran before."""
    return Demand(
        memory_mib=learned_mib * LEARNED_MARGIN,
        source=DemandSource.LEARNED,
        because=f"{learned_mib:.0f} MiB were measured when it ran before",
    )


def context_tokens(profile: Profile, facts: WeightFacts) -> int | None:
    """Return the longest context that the engine must be able to hold."""
    for name in CONTEXT_OPTIONS:
        value = profile.options.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return facts.max_context


def kv_cache_mib(facts: WeightFacts, context: int, *, token_share: float = 1.0) -> float:
    """Return the cache of one sequence of this many tokens, all devices together.

    token_share: size of a cached token next to the one that the weights' own type would have.
    """
    windowed = context if facts.sliding_window is None else min(context, facts.sliding_window)
    size = context * (facts.kv_bytes_per_token or 0.0) + windowed * facts.windowed_bytes_per_token
    return size * token_share / 2**20


def cache_share(profile: Profile) -> float:
    """Return how much smaller than 16 bit the engine was told to keep its cache."""
    for name in CACHE_TYPE_OPTIONS:
        value = str(profile.options.get(name, ""))
        if value.startswith(("fp8", "q8")):
            return 0.53125 if value.startswith("q8") else 0.5  # q8_0: 34 bytes for 32 values
    return 1.0
