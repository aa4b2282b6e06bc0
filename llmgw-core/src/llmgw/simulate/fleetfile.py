"""A fleet as an operator describes it: groups of equal nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from llmgw.config.documents import read_document
from llmgw.config.problems import problems_of
from llmgw.config.section import Section
from llmgw.control.decide.need import ROLES
from llmgw.domain.catalog import Model
from llmgw.domain.ids import DeviceId, NodeId
from llmgw.domain.nodes import CachedWeights, Device, InstalledEngine, NodeInventory
from llmgw.errors import ConfigError

Kind = TypeVar("Kind", bound=Section)


class DeviceGroup(Section):
    """Equal accelerators of one node."""

    count: Annotated[int, Field(ge=0)] = 0
    kind: str = "NVIDIA H100 80GB HBM3"
    vendor: str = "nvidia"
    memory_gib: Annotated[float, Field(gt=0)] = 80.0
    island: Annotated[int, Field(ge=1)] | None = None
    """Devices that are joined by fast links; null: all of the node."""
    labels: Mapping[str, str] = {}


class NodeGroup(Section):
    """Equal nodes."""

    name: str
    count: Annotated[int, Field(ge=1)] = 1
    """More than one: the nodes are called `<name>-1`, `<name>-2`, …"""
    pool: str = "default"
    labels: Mapping[str, str] = {}
    fabric: Mapping[str, str] = {}
    ram_gib: Annotated[float, Field(gt=0)] = 512.0
    devices: DeviceGroup = DeviceGroup()
    engines: Mapping[str, str] | None = None
    """Version by engine; null: every installed engine, in whatever version is asked for."""
    weights: tuple[str, ...] = ()
    """Weights that lie there already."""


class FleetFile(Section):
    """The file of `llmgw simulate --fleet`."""

    nodes: tuple[NodeGroup, ...]


class CatalogFile(Section):
    """The file of `llmgw simulate --catalog`; other sections of a server's file are not read."""

    models: tuple[Model, ...]


def read_fleet(path: Path, engines: Iterable[str]) -> tuple[NodeInventory, ...]:
    """Return the nodes that the file describes. Raises ConfigError with every problem."""
    groups = _read(path, FleetFile).nodes
    return tuple(
        _node(group, number, tuple(engines))
        for group in groups
        for number in range(1, group.count + 1)
    )


def read_catalog(path: Path) -> tuple[Model, ...]:
    """Return the models of a catalog or server file. Raises ConfigError with every problem."""
    return _read(path, CatalogFile).models


def _read(path: Path, kind: type[Kind]) -> Kind:
    document = read_document(path)
    if document.problems:
        raise ConfigError(str(path), document.problems)
    data = document.data
    if kind is CatalogFile:
        data = {"models": data.get("models", ())}
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise ConfigError(str(path), problems_of(error, kind, lambda _: "")) from error


def _node(group: NodeGroup, number: int, engines: tuple[str, ...]) -> NodeInventory:
    name = group.name if group.count == 1 else f"{group.name}-{number}"
    per_island = group.devices.island or max(1, group.devices.count)
    versions = group.engines if group.engines is not None else dict.fromkeys(engines, "any")
    return NodeInventory(
        capabilities=frozenset({ROLES}),
        node=NodeId(name),
        agent_uid=name,
        boot_id=name,
        machine_id=name,
        agent_version="",
        hostname=name,
        data_address="127.0.0.1",
        pool=group.pool,
        labels=group.labels,
        fabric=group.fabric,
        ram_mib=int(group.ram_gib * 1024),
        devices=tuple(
            Device(
                id=DeviceId(f"{name}-gpu{index}"),
                index=index,
                kind=group.devices.kind,
                vendor=group.devices.vendor,
                memory_mib=int(group.devices.memory_gib * 1024),
                island=f"island{index // per_island}",
                labels=group.devices.labels,
            )
            for index in range(group.devices.count)
        ),
        engines=tuple(
            InstalledEngine(engine=engine, version=version, path="")
            for engine, version in versions.items()
        ),
        weights=tuple(CachedWeights(ref=ref, size_bytes=0) for ref in group.weights),
    )
