"""Fabrics that can be seen from the node: InfiniBand and RoCE ports. The rest is told by flag."""

from __future__ import annotations

from pathlib import Path

_PORTS = Path("/sys/class/infiniband")


def fabric_labels(ports: Path = _PORTS) -> dict[str, str]:
    """Return labels such as `{"ib": "fe80000000000000"}`: equal subnet, joined by InfiniBand.

    For InfiniBand the subnet prefix that its manager gave; two subnets with the factory's
    prefix look like one, which only a label given by flag can tell apart. `roce` says that
    there is an active port, not who is behind it. {}: nothing is active.
    """
    labels: dict[str, str] = {}
    for state in sorted(ports.glob("*/ports/*/state")):
        port = state.parent
        if "ACTIVE" not in _read(state):
            continue
        if _read(port / "link_layer") == "InfiniBand":
            prefix = _read(port / "gids" / "0").replace(":", "")[:16]
            labels.setdefault("ib", prefix or "unknown")
        else:
            labels.setdefault("roce", "active")
    return labels


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
