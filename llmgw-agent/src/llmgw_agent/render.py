"""`llmgw agent status` as text: aligned tables, blanks as `-`, so that columns can be cut."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.domain.nodes import Device
from llmgw.domain.units import format_duration
from llmgw_agent.node.status import AgentStatus, ShardLine


def status_text(status: AgentStatus, now: float) -> str:
    """Return the whole status. now: Unix seconds."""
    inventory = status.inventory
    tables = [
        _table(
            ("NODE", "AGENT", "PID", "POOL", "CLUSTER", "EPOCH", "WRITTEN"),
            [
                (
                    inventory.node,
                    "running" if status.running else "stopped",
                    str(status.pid) if status.running else "",
                    inventory.pool,
                    status.cluster_id or "",
                    str(status.epoch),
                    _age(status.written_at, now),
                )
            ],
        ),
        _table(
            ("SERVER", "STATE", "SINCE", "REASON"),
            [
                (item.server, item.state, _age(item.since, now), item.reason)
                for item in status.servers
            ],
        ),
        _table(
            ("DEVICE", "KIND", "MEMORY", "USED", "HEALTH"),
            [_device(device) for device in inventory.devices],
        ),
        _table(
            ("SHARD", "MODEL", "ENGINE", "STATE", "PID", "RESTARTS", "URL", "REASON"),
            [_shard(line) for line in status.shards],
        ),
    ]
    return "\n\n".join(table for table in tables if table)


def _age(then: float, now: float) -> str:
    return f"{format_duration(now - then)} ago"


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value} MiB"


def _device(device: Device) -> tuple[str, ...]:
    return (
        device.id,
        device.kind,
        _mib(device.memory_mib),
        _mib(device.memory_used_mib),
        f"{device.health} {device.health_reason}".strip(),
    )


def _shard(line: ShardLine) -> tuple[str, ...]:
    shard = line.shard
    return (
        shard.id,
        line.model,
        line.engine,
        shard.state,
        str(shard.pid or ""),
        str(shard.restarts),
        line.url or "",
        shard.failure.message if shard.failure else "",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned lines; "" if there are no rows."""
    if not rows:
        return ""
    # Texts of engines and drivers: one row stays one line, and escapes stay harmless.
    cells = [head, *(tuple(_plain(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _plain(cell: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in cell) or "-"
