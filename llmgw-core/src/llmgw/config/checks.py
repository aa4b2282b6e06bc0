"""What no single value can be wrong about: settings against each other and against plugins.

Works on what was written, not on a whole valid configuration: one wrong number must not
hide an unknown engine elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from llmgw.config.addresses import Address
from llmgw.config.documents import Steps
from llmgw.config.installed import Installed
from llmgw.config.problems import unknown_name
from llmgw.config.server import (
    AuthSettings,
    ControlSettings,
    RouterSettings,
    ServerSettings,
    StaticEndpoint,
    TlsSettings,
)
from llmgw.domain.catalog import Profile
from llmgw.errors import ConfigError

S = TypeVar("S", bound=BaseModel)

_LISTENERS = ("listen", "admin_listen", "agent_listen")
#: Engines of ours that may be missing only because their package is.
_PACKAGES = {
    "vllm": "llmgw-engine-vllm",
    "sglang": "llmgw-engine-sglang",
    "llamacpp": "llmgw-engine-llamacpp",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, before it is known which line it stands on."""

    steps: Steps
    message: str


def settings_findings(data: Mapping[str, object], installed: Installed) -> Iterator[Finding]:
    """Check everything but `models`. data: the merged settings as written."""
    listeners = _listeners(data)
    yield from _clashes(data, listeners)
    yield from _exposed(data, listeners)
    yield from _tls_files(data)
    yield from _endpoints(data, listeners)
    yield from _router(data, installed)
    control = _valid(ControlSettings, data.get("control", {}))
    if control and installed.policies and control.placement_policy not in installed.policies:
        yield Finding(
            ("control", "placement_policy"),
            unknown_name(control.placement_policy, installed.policies, what="placement policy"),
        )
    if control and control.port_range[0] > control.port_range[1]:
        yield Finding(
            ("control", "port_range"), "must be [first, last], the first not above the last"
        )


def model_findings(
    models: Sequence[object], data: Mapping[str, object], installed: Installed
) -> Iterator[Finding]:
    """Check catalog entries against each other and against plugins; steps begin with the index."""
    owners: dict[str, int] = {}
    routings = _routings(data, installed)
    for index, model in enumerate(models):
        if not isinstance(model, Mapping):
            continue
        for steps, name in _names(model):
            first = owners.setdefault(name, index)
            if first != index:  # twice in one entry is found where the entry is validated
                owner = dict(_names(models[first])).get(("name",), f"models[{first}]")
                message = f"{name!r} is already a name of model {owner!r}; names are unique"
                yield Finding((index, *steps), message)
        routing = model.get("routing")
        if routings and isinstance(routing, str) and routing not in routings:
            yield Finding(
                (index, "routing"), unknown_name(routing, routings, what="routing profile")
            )
        for at, profile in enumerate(_items(model.get("profiles", ()))):
            if isinstance(profile, Mapping):
                for finding in _profile(profile, installed):
                    yield Finding((index, "profiles", at, *finding.steps), finding.message)


def _names(model: object) -> list[tuple[Steps, str]]:
    if not isinstance(model, Mapping):
        return []
    said = [(("name",), model.get("name"))]
    aliases = [(("aliases", at), alias) for at, alias in enumerate(_items(model.get("aliases")))]
    return [(steps, name) for steps, name in [*said, *aliases] if isinstance(name, str)]


def _profile(profile: Mapping[str, object], installed: Installed) -> Iterator[Finding]:
    engine = profile.get("engine")
    weights = profile.get("weights")
    engines = installed.engines
    if engines is not None and isinstance(engine, str) and engine not in engines:
        yield Finding(("engine",), _unknown_engine(engine, sorted(engines), installed.failed))
    if isinstance(weights, str) and installed.weights:
        scheme = weights.partition(":")[0]
        if scheme not in installed.weights:
            yield Finding(
                ("weights",), unknown_name(scheme, installed.weights, what="source of weights")
            )
        elif problem := installed.weights[scheme](weights):
            yield Finding(("weights",), problem)
    checked = _valid(Profile, profile)
    if checked and engines and checked.engine in engines:
        try:
            problems = tuple(engines[checked.engine](checked))
        except Exception as error:  # a plugin's code may raise anything
            yield Finding(("engine",), f"{checked.engine} could not check it: {error!r}")
        else:
            yield from (Finding(_steps(problem.path), problem.message) for problem in problems)


def _unknown_engine(engine: str, known: Sequence[str], failed: Mapping[str, str]) -> str:
    names = ", ".join(known) or "none"
    package = _PACKAGES.get(engine)
    if package and package in failed:
        return f"engine {engine!r} is not usable: {package} failed: {failed[package]}"
    if package:
        return f"engine {engine!r} is not installed: pip install {package}; installed: {names}"
    return f"unknown engine {engine!r}; installed: {names}"


def _listeners(data: Mapping[str, object]) -> dict[str, Address]:
    found = {}
    for key in _LISTENERS:
        text = data.get(key, ServerSettings.model_fields[key].default)
        try:
            found[key] = Address.parse(str(text))
        except ValueError:
            continue  # reported by its own validation, or a UNIX socket
    return found


def _clashes(data: Mapping[str, object], listeners: Mapping[str, Address]) -> Iterator[Finding]:
    keys = list(listeners)
    for at, key in enumerate(keys):
        for earlier in keys[:at]:
            if listeners[key].overlaps(listeners[earlier]):
                yield Finding((key,), f"{listeners[key]} is already taken by `{earlier}`")
    control = _valid(ControlSettings, data.get("control", {}))
    if control is None:
        return
    first, last = control.port_range
    for key in keys:
        if first <= listeners[key].port <= last:
            yield Finding(
                (key,),
                f"port {listeners[key].port} is in control.port_range {first}-{last} of engines",
            )


def _exposed(data: Mapping[str, object], listeners: Mapping[str, Address]) -> Iterator[Finding]:
    auth = _valid(AuthSettings, data.get("auth", {}))
    tls = _valid(TlsSettings, data.get("tls", {}))
    if auth is None or tls is None or auth.insecure_bind:
        return
    way_out = (
        "set tls.certificate and tls.key, or auth.insecure_bind (--insecure-bind) "
        "where the network is trusted"
    )
    for key in ("listen", "admin_listen"):
        address = listeners.get(key)
        if address is None or address.is_loopback:
            continue
        if tls.certificate is None:
            yield Finding(
                (key,), f"{address} can be reached from other machines without TLS; {way_out}"
            )
        if key == "listen" and auth.api_keys == "off":
            yield Finding(
                ("auth", "api_keys"),
                f"off would let anybody who reaches {address} in; use auto, or listen on 127.0.0.1",
            )


def _tls_files(data: Mapping[str, object]) -> Iterator[Finding]:
    tls = _valid(TlsSettings, data.get("tls", {}))
    if tls is None:
        return
    if (tls.certificate is None) != (tls.key is None):
        missing = "certificate" if tls.certificate is None else "key"
        yield Finding(("tls", missing), "is missing; tls needs both certificate and key")
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        if path is not None and not path.is_file():
            yield Finding(("tls", name), f"there is no file {str(path)!r}")


def _endpoints(data: Mapping[str, object], listeners: Mapping[str, Address]) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for index, raw in enumerate(_items(data.get("endpoints", ()))):
        name = str(raw.get("id")) if isinstance(raw, Mapping) else ""
        if seen.setdefault(name, index) != index:
            message = f"{name!r} is already the id of endpoints[{seen[name]}]"
            yield Finding(("endpoints", index, "id"), message)
        endpoint = _valid(StaticEndpoint, raw)
        if endpoint is None:
            continue
        for key, address in listeners.items():
            if address.port and endpoint.url in (f"http://{address}", f"https://{address}"):
                yield Finding(("endpoints", index, "url"), f"is this server's own `{key}`")
        key_file = endpoint.api_key_file
        if key_file is not None and not Path(key_file).is_file():
            yield Finding(
                ("endpoints", index, "api_key_file"), f"there is no file {str(key_file)!r}"
            )


def _router(data: Mapping[str, object], installed: Installed) -> Iterator[Finding]:
    router = _valid(RouterSettings, data.get("router", {}))
    if router is None or not installed.balancers:
        return
    for name, profile in router.profiles.items():
        steps = ("router", "profiles", name)
        make = installed.balancers.get(profile.balancer)
        if make is None:
            message = unknown_name(profile.balancer, installed.balancers, what="balancer")
            yield Finding((*steps, "balancer"), message)
            continue
        try:
            make(profile.options)
        except ConfigError as error:
            for problem in error.problems:
                yield Finding((*steps, "options", *_steps(problem.path)), problem.message)
        except Exception as error:  # a plugin's code may raise anything
            yield Finding((*steps, "options"), f"{profile.balancer} could not take them: {error!r}")
    known = _routings(data, installed)
    if router.default_profile not in known:
        message = unknown_name(router.default_profile, known, what="routing profile")
        yield Finding(("router", "default_profile"), message)


def _routings(data: Mapping[str, object], installed: Installed) -> frozenset[str]:
    """Every balancer is a routing profile by its own name as well; empty: nobody can tell."""
    if not installed.balancers:
        return frozenset()
    router = data.get("router")
    profiles = router.get("profiles") if isinstance(router, Mapping) else None
    named = profiles if isinstance(profiles, Mapping) else {}
    return frozenset([*installed.balancers, *(str(name) for name in named)])


def _valid(kind: type[S], raw: object) -> S | None:
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None  # reported where the whole is validated


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _steps(path: str) -> Steps:
    """Read a plugin's `options.max_len` or `stages[2].x` back into steps."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts if part)
