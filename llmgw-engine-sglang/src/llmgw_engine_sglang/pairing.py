"""A prefill and a decode engine of SGLang that share a request.

Both are sent the same request at the same time, with the address of the prefill engine's
bootstrap server and a number (`bootstrap_room`) by which the two find each other there; the
prompt's cache then goes from one to the other without further help. Read in SGLang 0.5.23:
`entrypoints/openai/protocol.py` (PDRoutingFields), `managers/io_struct.py`, `managers/scheduler.py`.
"""

from __future__ import annotations

from llmgw.contracts.pairing import Fields, Halves, SharedRequest
from llmgw.errors import RequestError

_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
#: These generate nothing, so half a pair answers them as well as a whole engine.
_BY_ONE = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
_USUAL_PORT = 8998


class BootstrapPairing:
    """Both at once, with a room to meet in. The rooms of a batch follow each other."""

    reserved = frozenset({"bootstrap_host", "bootstrap_port", "bootstrap_room"})

    def share(self, request: SharedRequest) -> Halves | None:
        if request.path in _BY_ONE:
            return None
        if request.path not in _PATHS:
            raise RequestError(
                f"{request.path} is not answered by a model that computes prompts and answers "
                "apart; only generation is",
                status=404,
                code="not_for_this_model",
            )
        room: Fields = {
            "bootstrap_host": request.host,
            "bootstrap_port": request.meeting_port or _USUAL_PORT,
            "bootstrap_room": request.number,
        }
        return Halves(prefill=room, decode=room)

    def handed_over(self, answer: bytes) -> Fields:  # noqa: ARG002 - both know it beforehand
        return {}
