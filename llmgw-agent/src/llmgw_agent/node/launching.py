"""From an assignment to the record that a shim starts: environment, ports, locks, key."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from llmgw.contracts.engine import Assignment, EngineAdapter, EngineHome, Launch
from llmgw.domain.catalog import Adapter, DeviceNeed, Parallel, Profile
from llmgw.domain.commands import ShardSpec
from llmgw.domain.ids import DeviceId
from llmgw.domain.secret import Secret
from llmgw_agent.node.processes import COOKIE
from llmgw_agent.node.shardfolder import LaunchRecord, ShardFolder

# What an engine may inherit: where programs and caches are, the language, and the settings of
# drivers and fabrics that the node's owner made for all. Nothing else of the agent's own
# environment, which may hold tokens.
_INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH"}
    | {"XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH"}
)
# A gang's nodes share one; which, only its placement had to know.
_SOME_FABRIC = "shared"
_INHERITED_PREFIXES = ("LC_", "NCCL_", "RCCL_", "UCX_", "GLOO_", "OMP_", "MKL_", "HSA_", "NVIDIA_")


def effective_spec(spec: ShardSpec, advice: Mapping[str, object]) -> ShardSpec:
    """Return the spec with the options that an earlier failure advised."""
    return replace(spec, options={**spec.options, **advice}) if advice else spec


def profile_of(spec: ShardSpec) -> Profile:
    """Return the profile that the spec was made of, as far as an adapter looks at it.

    Raises pydantic's ValidationError if no catalog would have taken it.
    """
    count = sum(peer.devices for peer in spec.peers) if spec.peers else len(spec.devices)
    return Profile(
        name=spec.profile,
        engine=spec.engine,
        version=spec.engine_version,
        weights=spec.weights,
        devices=DeviceNeed(count=count),
        parallel=Parallel(tensor=spec.tensor, pipeline=spec.pipeline, data=spec.data),
        nodes=len({peer.node for peer in spec.peers}) or 1,
        fabric=_SOME_FABRIC if spec.world_size > 1 else None,
        options=spec.options,
        command=spec.command,
        env=spec.env,
        role=spec.role,
        adapters=tuple(Adapter(name=item.name, weights=item.weights) for item in spec.adapters),
    )


def engine_environment(
    inherited: Mapping[str, str], launch: Launch, *, cookie: str, scratch: Path
) -> dict[str, str]:
    """Return the whole environment of an engine's main process."""
    kept = {
        name: value
        for name, value in inherited.items()
        if (name in _INHERITED or name.startswith(_INHERITED_PREFIXES))
        and not name.startswith(launch.scrub_env)
    }
    return {
        "PATH": os.defpath,
        **kept,
        # Libraries number devices by speed unless told otherwise, drivers by bus (C048).
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        **launch.env,
        COOKIE: cookie,
    }


def device_locks(folder: Path, devices: tuple[DeviceId, ...]) -> tuple[str, ...]:
    """Return the host-wide lock file of each device; another agent's engine may hold it."""
    return tuple(str(folder / f"{device}.lock") for device in devices)


def make_record(
    spec: ShardSpec,
    *,
    adapter: EngineAdapter,
    home: EngineHome,
    weights: Path,
    folder: ShardFolder,
    key: Secret,
    address: str,
    guarded: bool,
    device_indices: tuple[int, ...],
    cookie: str,
    lock_folder: Path,
    inherited: Mapping[str, str],
) -> LaunchRecord:
    """Ask the adapter how to start this shard, and complete it to what a shim needs."""
    launch = adapter.launch(
        Assignment(
            spec=spec,
            home=home,
            weights_path=str(weights),
            bind_address=address,
            guarded=guarded,
            device_indices=device_indices,
            credential=key,
            scratch=str(folder.scratch),
        )
    )
    return LaunchRecord(
        run=0,
        argv=launch.argv,
        env=engine_environment(inherited, launch, cookie=cookie, scratch=folder.scratch),
        cwd=str(folder.scratch),
        port=spec.ports[0] if spec.ports and launch.ready is not None else None,
        cookie=cookie,
        token=secrets.token_hex(8),
        device_locks=device_locks(lock_folder, spec.devices),
        shard=spec,
        ready=launch.ready,
        warm_up=launch.warm_up,
        expect_models=launch.expect_models,
    )
