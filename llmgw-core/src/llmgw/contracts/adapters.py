"""Reads which LoRA adapters an engine has, from the list of models that vLLM and SGLang share. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping


def listed_adapters(body: str) -> Mapping[str, str]:
    """Return the folder of each adapter by name.

    body: of `/v1/models`. Entries of adapters, and only those, name a parent. Raises ValueError if
    it is no such list.
    """
    try:
        entries = json.loads(body)["data"]
        return {str(item["id"]): str(item["root"]) for item in entries if item.get("parent")}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a list of models: {error}") from error
