"""The only translator between values and what agent.proto says, both ways.

Every function here is pure. Names and texts from outside (device names, host names, labels,
engines' output) may hold bytes that are no UTF-8: they are replaced, since one such letter in
a protobuf text field would break the stream, and again after each reconnect (C055).
"""

from llmgw_agent.wire.codec.bulk import decode_bulk, encode_bulk
from llmgw_agent.wire.codec.offers import decode_offer, encode_offer
from llmgw_agent.wire.codec.sessions import (
    DownDecoder,
    UpDecoder,
    encode_down,
    encode_up,
)

__all__ = [
    "DownDecoder",
    "UpDecoder",
    "decode_bulk",
    "decode_offer",
    "encode_bulk",
    "encode_down",
    "encode_offer",
    "encode_up",
]
