"""Requests whose heads come again, to be answered without reading them again.

Refused or granted, a head stays so for as long as keys do not change.
"""

from __future__ import annotations

from llmgw.router.ingress import Request
from llmgw.router.keys import KeyGrant
from llmgw.router.repeated import RepeatedHead


class RepeatedRequest(RepeatedHead):
    """A head that was found in order and led to this request."""

    __slots__ = ("generation", "grant", "request")

    def __init__(
        self, parts: tuple[bytes, bytes], request: Request, grant: KeyGrant, generation: int
    ) -> None:
        super().__init__(*parts)
        self.request = request  #: to be answered again, with another body
        self.grant = grant
        self.generation = generation  #: of the keys

    @staticmethod
    def of(
        data: bytes, request: Request, grant: KeyGrant, generation: int
    ) -> RepeatedRequest | None:
        """Remember the head of a request that came in one read, alone; None if it did not."""
        if request.length is None or request.expects_continue:
            return None
        parts = RepeatedHead.parts(data, request.length)
        return None if parts is None else RepeatedRequest(parts, request, grant, generation)
