"""Write the code generated from agent.proto into the package, or check that it is current.

    python llmgw-agent/tests/wire/generate.py [--check]

Needs grpcio-tools, which nothing else of llmgw does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).parents[2] / "src"
WIRE = Path("llmgw_agent") / "wire"
GENERATED = ("agent_pb2.py", "agent_pb2.pyi")


def generate(into: Path) -> None:
    """Write the generated modules below `into`, in the package's own folders."""
    exit_code = protoc.main(
        [
            "protoc",
            f"--proto_path={SOURCE}",
            f"--python_out={into}",
            f"--pyi_out={into}",
            str(SOURCE / WIRE / "agent.proto"),
        ]
    )
    if exit_code:
        raise SystemExit(exit_code)


def stale() -> list[str]:
    """Return the committed files that differ from what agent.proto yields now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        return [
            name
            for name in GENERATED
            if (SOURCE / WIRE / name).read_text() != (Path(folder) / WIRE / name).read_text()
        ]


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate(SOURCE)
        return 0
    if names := stale():
        sys.stderr.write(f"{', '.join(names)}: older than agent.proto; run {__file__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
