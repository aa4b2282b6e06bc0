"""What is wrong with a catalog before it is put in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmgw.contracts.engine import EngineAdapter, LoadsAdapters
from llmgw.contracts.pairing import Pairs
from llmgw.contracts.weights import WeightSource
from llmgw.domain.catalog import Model, Profile, name_conflicts
from llmgw.errors import Problem


def catalog_problems(
    entries: Sequence[Model],
    *,
    engines: Mapping[str, EngineAdapter],
    sources: Mapping[str, WeightSource],
) -> tuple[Problem, ...]:
    """Return every problem, with paths such as `models[1].profiles[0].options.max_model_len`.

    engines: installed adapters by name. sources: by scheme; empty: refs are not checked.
    """
    problems: list[Problem] = []
    for index, name, owner in name_conflicts(tuple(entries)):
        problems.append(
            Problem(path=f"models[{index}]", message=f"the name {name!r} is taken by {owner!r}")
        )
    for index, model in enumerate(entries):
        for position, profile in enumerate(model.profiles):
            path = f"models[{index}].profiles[{position}]"
            adapter = engines.get(profile.engine)
            if adapter is None:
                known = ", ".join(sorted(engines)) or "none"
                problems.append(
                    Problem(
                        path=f"{path}.engine",
                        message=f"unknown engine {profile.engine!r}; installed: {known}",
                    )
                )
            else:
                problems += [
                    replace(problem, path=f"{path}.{problem.path}" if problem.path else path)
                    for problem in _adapter_problems(profile, adapter)
                ]
                if profile.role is not None and not isinstance(adapter, Pairs):
                    message = f"{profile.engine} computes whole requests only"
                    problems.append(Problem(path=f"{path}.role", message=message))
                if message := _adapters_problem(profile, adapter):
                    problems.append(Problem(path=f"{path}.adapters", message=message))
            refs = [("weights", profile.weights)]
            refs += [(f"adapters[{i}].weights", a.weights) for i, a in enumerate(profile.adapters)]
            for place, ref in refs:
                if message := _ref_problem(ref, sources):
                    problems.append(Problem(path=f"{path}.{place}", message=message))
    return tuple(problems)


def _adapter_problems(profile: Profile, adapter: EngineAdapter) -> Sequence[Problem]:
    """Return what the engine's adapter finds wrong.

    A plugin's mistake is a problem of the one profile, not the end of the server that asks.
    """
    try:
        return adapter.check(profile)
    except Exception as error:
        mistake = f"{type(error).__name__}: {error}"
        return (Problem(path="engine", message=f"adapter {profile.engine} failed: {mistake}"),)


def _adapters_problem(profile: Profile, engine: EngineAdapter) -> str:
    """Return why these engines cannot have the profile's adapters; "" if they can."""
    if not profile.adapters:
        return ""
    if not isinstance(engine, LoadsAdapters):
        return f"{profile.engine} loads no adapters while it serves"
    if profile.role is not None:
        return "are not for profiles with a role"
    if profile.nodes > 1:
        return "need `nodes: 1`: each rank would look for them in the same folder of its own node"
    return ""


def _ref_problem(ref: str, sources: Mapping[str, WeightSource]) -> str:
    scheme = ref.partition(":")[0]
    source = sources.get(scheme)
    if source is not None:
        try:
            return source.problem(ref) or ""
        except Exception as error:  # likewise
            return f"source {scheme!r} failed: {type(error).__name__}: {error}"
    if not sources:
        return ""
    return f"unknown source {scheme!r}; installed: {', '.join(sorted(sources))}"
