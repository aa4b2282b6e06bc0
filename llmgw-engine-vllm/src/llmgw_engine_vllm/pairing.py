"""A prefill and a decode engine of vLLM that share a request, by its NIXL connector.

The prefill engine generates one token and says in its answer where the cache of the prompt lies
(`kv_transfer_params`); the decode engine is given that and reads the cache from there, without
further help. Read in vLLM 0.32.0: `kv_connector/v1/nixl/pull_scheduler.py`, the protocols of the
three paths, and `tests/v1/kv_connector/nixl_integration/toy_proxy_server.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.contracts.pairing import Fields, Halves, HandoverMissing, SharedRequest

_HANDOVER = "kv_transfer_params"
_CHAT = "/v1/chat/completions"
_PATHS = frozenset({_CHAT, "/v1/completions", "/v1/messages"})
#: The prompt's last token ended the answer already: then older versions keep no cache, and the
#: decode engine comes to the same end by itself.
_ENDED = frozenset({"stop", "tool_calls", "end_turn", "stop_sequence", "tool_use"})


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    """Of all three paths; what one of them lacks is empty."""

    kv_transfer_params: dict[str, Any] | None = None
    choices: list[_Choice] = []
    stop_reason: str | None = None  #: of messages


_read = msgspec.json.Decoder(_Answer).decode


class NixlPairing:
    """Prefill first, then decode with what the prefill engine has said."""

    reserved = frozenset({_HANDOVER})

    def share(self, request: SharedRequest) -> Halves | None:
        """Return one token's worth of the request for the prefill engine.

        A cache is read once, so a body that asks for several answers is left to the decode
        engine alone, which can compute prompts too; and so are all other paths.
        """
        if request.path not in _PATHS or request.copies > 1:
            return None
        return Halves(
            prefill={
                _HANDOVER: {
                    "do_remote_decode": True,
                    "do_remote_prefill": False,
                    "remote_engine_id": None,
                    "remote_block_ids": None,
                    "remote_host": None,
                    "remote_port": None,
                },
                "stream": False,
                "stream_options": None,
                "max_tokens": 1,
                # A chat has both, and this one comes first.
                "max_completion_tokens": 1 if request.path == _CHAT else None,
                "min_tokens": None,
            }
        )

    def handed_over(self, answer: bytes) -> Fields:
        try:
            said = _read(answer)
        except msgspec.DecodeError as error:
            raise HandoverMissing("the prefill engine answered with something else") from error
        if said.kv_transfer_params:
            return {_HANDOVER: said.kv_transfer_params}
        ends = {said.stop_reason, *(choice.finish_reason for choice in said.choices)}
        if ends & _ENDED:
            return {}
        raise HandoverMissing(
            "the prefill engine does not say where its cache is, so it runs without a KV connector"
        )
