"""What is wrong with a catalog before it is put in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmgw.contracts.engine import EngineAdapter
from llmgw.contracts.pairing import Pairs
from llmgw.contracts.weights import WeightSource
from llmgw.domain.catalog import Model, name_conflicts
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
                    for problem in adapter.check(profile)
                ]
                if profile.role is not None and not isinstance(adapter, Pairs):
                    message = f"{profile.engine} computes whole requests only"
                    problems.append(Problem(path=f"{path}.role", message=message))
            scheme = profile.weights.partition(":")[0]
            source = sources.get(scheme)
            if source is not None and (problem := source.problem(profile.weights)):
                problems.append(Problem(path=f"{path}.weights", message=problem))
            elif sources and source is None:
                known = ", ".join(sorted(sources))
                problems.append(
                    Problem(
                        path=f"{path}.weights",
                        message=f"unknown source {scheme!r}; installed: {known}",
                    )
                )
    return tuple(problems)
