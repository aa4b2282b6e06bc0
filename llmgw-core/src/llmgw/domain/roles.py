"""The two halves of a request, for engines that compute them apart."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What an engine computes of a request that two of them share."""

    PREFILL = "prefill"  #: the prompt
    DECODE = "decode"  #: the answer, from the cache that the other has filled
