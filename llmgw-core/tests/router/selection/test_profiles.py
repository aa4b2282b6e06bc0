"""Routing profiles are checked before anything listens."""

from __future__ import annotations

import pytest

from llmgw.config.server import RouterSettings
from llmgw.errors import ConfigError
from llmgw.router.balancers import llmgw_balancers
from llmgw.router.selection import compile_profiles

BALANCERS = {factory.name: factory for factory in llmgw_balancers()}


def test_every_problem_is_reported_with_its_path() -> None:
    settings = RouterSettings.model_validate(
        {
            "default_profile": "nope",
            "profiles": {
                "one": {"balancer": "magic"},
                "two": {"balancer": "prefix", "options": {"match": 7, "colour": "red"}},
                "three": {"balancer": "round_robin", "options": {"x": 1}},
            },
        }
    )
    with pytest.raises(ConfigError) as caught:
        compile_profiles(settings, BALANCERS)
    assert {problem.path for problem in caught.value.problems} == {
        "router.default_profile",
        "router.profiles.one.balancer",
        "router.profiles.two.options.match",
        "router.profiles.two.options.colour",
        "router.profiles.three.options.x",
    }


def test_every_balancer_is_a_profile_by_its_own_name() -> None:
    profiles = compile_profiles(RouterSettings(), BALANCERS)
    assert set(profiles.by_name) == set(BALANCERS)
    assert profiles.find(None).name == "least_outstanding"


def test_a_profile_may_take_a_balancers_name_and_change_its_options() -> None:
    settings = RouterSettings.model_validate(
        {"profiles": {"prefix": {"balancer": "prefix", "options": {"prompt_bytes": 1024}}}}
    )
    assert compile_profiles(settings, BALANCERS).find("prefix").needs.prompt_bytes == 1024
