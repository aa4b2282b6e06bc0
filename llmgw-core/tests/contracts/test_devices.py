from __future__ import annotations

import pytest

from llmgw.contracts.devices import VISIBILITY, visible_devices


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ((), {"CUDA_VISIBLE_DEVICES": ""}),
        (
            (
                "GPU-8d6b1f0e-0c1a-4f7e-9b52-2d3c4e5f6a7b",
                "MIG-5c0e9a9e-91f0-5a51-8f1f-3c1a2b3c4d5e",
            ),
            {
                "CUDA_VISIBLE_DEVICES": "GPU-8d6b1f0e-0c1a-4f7e-9b52-2d3c4e5f6a7b,"
                "MIG-5c0e9a9e-91f0-5a51-8f1f-3c1a2b3c4d5e"
            },
        ),
        (
            ("GPU-1e4d2c3b5a697887", "GPU-0f1e2d3c4b5a6978"),
            {"ROCR_VISIBLE_DEVICES": "GPU-1e4d2c3b5a697887,GPU-0f1e2d3c4b5a6978"},
        ),
    ],
)
def test_devices_are_shown_by_uuid_in_the_vendors_own_variable(
    devices: tuple[str, ...], shown: dict[str, str]
) -> None:
    assert visible_devices(devices) == shown
    assert set(shown) <= set(VISIBILITY)
