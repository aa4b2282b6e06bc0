"""How two engines share one request: one computes its prompt, the other its answer.

An adapter describes what each of them is sent, the router sends it. Everything here is called for
each request and must be pure: no I/O, no clock, no chance of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Fields = Mapping[str, object]
"""Top-level fields of a JSON body that replace the client's. None: the field is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRequest:
    """What may be looked at of a request before it is shared."""

    path: str  #: the engine's, e.g. `/v1/chat/completions`
    copies: int  #: answers that one body asks for: its prompts times `n`
    host: str  #: of the prefill endpoint, as the router reaches it; no brackets
    meeting_port: int | None  #: `Endpoint.meeting_port` of the prefill endpoint
    number: int  #: random, from 0 below 2**62; hardly any other request has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """What either engine is sent."""

    prefill: Fields
    decode: Fields | None = None
    """None: the answer of the prefill engine says it, so the decode engine is asked after that.
    Otherwise both are asked at once."""


class HandoverMissing(Exception):
    """The answer of a prefill engine does not say where its cache is. The text is for people."""


class Pairing(Protocol):
    """One engine kind's way to share requests."""

    @property
    def reserved(self) -> frozenset[str]:
        """Return the fields that only the router may set.

        What a client sends in them is dropped: it could name the cache of another's prompt.
        """
        ...

    def share(self, request: SharedRequest) -> Halves | None:
        """Return what each engine is sent; None: the decode engine computes this one alone.

        Raises RequestError for a request that these engines cannot answer at all.
        """
        ...

    def handed_over(self, answer: bytes) -> Fields:
        """Return what the decode engine is sent, from the prefill engine's whole answer.

        Raises HandoverMissing. Only called where `Halves.decode` is None.
        """
        ...


@runtime_checkable
class Pairs(Protocol):
    """The engine can compute prompts and answers apart: its profiles may have a `role`."""

    @property
    def pairing(self) -> Pairing: ...
