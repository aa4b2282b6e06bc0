"""Routing profiles, checked at start and looked up by name afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.config.server import RouterSettings, RoutingProfile
from llmgw.contracts.balancing import (
    Balancer,
    BalancerFactory,
    ReadsEngineLoad,
    ReadsSession,
)
from llmgw.errors import ConfigError, Problem, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the front must find in a request before an endpoint can be chosen."""

    prompt_bytes: int = 0
    session_header: str | None = None
    session_user_field: bool = False
    engine_load: bool = False

    @staticmethod
    def of(balancer: Balancer) -> Needs:
        return Needs(
            prompt_bytes=balancer.prompt_bytes,
            session_header=balancer.session_header if isinstance(balancer, ReadsSession) else None,
            session_user_field=isinstance(balancer, ReadsSession) and balancer.session_user_field,
            engine_load=isinstance(balancer, ReadsEngineLoad) and balancer.reads_engine_load,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProfile:
    """A profile whose balancer exists and whose options it takes."""

    name: str
    factory: BalancerFactory
    options: Mapping[str, object]
    pools: frozenset[str]  #: empty: all
    needs: Needs

    def balancer(self) -> Balancer:
        """Make one for one model."""
        return self.factory.make(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """Every profile of this router."""

    default: str
    by_name: Mapping[str, CompiledProfile]

    def find(self, name: str | None) -> CompiledProfile:
        """Return the profile of a model. Falls back to the default: a catalog entry may name a
        profile that this router's settings do not have (yet), which must not stop requests."""
        found = self.by_name.get(name) if name else None
        return found or self.by_name[self.default]

    def require(self, name: str) -> CompiledProfile:
        """Return the profile that a client's header names; raises RequestError if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise RequestError(
                f"unknown routing profile {name[:64]!r}; there are: {', '.join(sorted(self.by_name))}",
                code="unknown_routing_profile",
                param="x-llmgw-profile",
            )
        return found


def compile_profiles(
    settings: RouterSettings, balancers: Mapping[str, BalancerFactory]
) -> Profiles:
    """Return all profiles of the settings, and one of each balancer's own name.

    Raises ConfigError with every problem: an unknown balancer, a bad option, an unknown default.
    """
    problems: list[Problem] = []
    compiled: dict[str, CompiledProfile] = {}
    own = {name: RoutingProfile(balancer=name) for name in balancers}
    for name, profile in {**own, **settings.profiles}.items():
        path = f"router.profiles.{name}"
        factory = balancers.get(profile.balancer)
        if factory is None:
            problems.append(
                Problem(
                    path=f"{path}.balancer",
                    message=f"unknown balancer {profile.balancer!r}; "
                    f"installed: {', '.join(sorted(balancers))}",
                )
            )
            continue
        try:
            needs = Needs.of(factory.make(profile.options))
        except ConfigError as error:
            problems += [
                Problem(path=f"{path}.{problem.path}", message=problem.message)
                for problem in error.problems
            ]
            continue
        compiled[name] = CompiledProfile(
            name=name,
            factory=factory,
            options=profile.options,
            pools=frozenset(profile.pools),
            needs=needs,
        )
    if settings.default_profile not in {*own, *settings.profiles}:
        problems.append(
            Problem(
                path="router.default_profile",
                message=f"unknown routing profile {settings.default_profile!r}; "
                f"there are: {', '.join(sorted({*own, *settings.profiles}))}",
            )
        )
    if problems:
        raise ConfigError("router", problems)
    return Profiles(default=settings.default_profile, by_name=compiled)
