"""What requests have used, on its way from routers to the store."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from llmgw.domain.ids import EndpointId, ModelName


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request, or the sum of several with equal key, model, endpoint, status and hour.

    A struct and no dataclass, for price: one is made for each request (0.3 us, not 1.7).
    """

    at: float  #: Unix seconds when it ended; of a sum, when the first of them did
    key: str  #: key id; "" where no key is asked for
    model: ModelName  #: canonical
    endpoint: EndpointId | None  #: None: refused before one was chosen
    status: int  #: HTTP status as sent; 499: the client left first
    requests: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0  #: of the prompt's, those that the engine did not compute
    completion_tokens: int = 0
    first_byte_s: float = 0.0  #: from the end of the request to the answer's first byte, summed
    duration_s: float = 0.0  #: from the end of the request to the end of the answer, summed


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageBatch:
    """Records that are counted once, however often they arrive."""

    id: str  #: unique for ever
    records: tuple[UsageRecord, ...]
