"""Where weights can be had in the fleet."""

from __future__ import annotations

from llmgw.domain.ids import NodeId
from llmgw_agent.wire import agent_pb2 as pb
from llmgw_agent.wire.frames import WeightsOffer, WeightsPeer


def encode_offer(offer: WeightsOffer) -> pb.WeightsOffer:
    return pb.WeightsOffer(
        manifest=offer.manifest,
        peers=[
            pb.WeightsPeer(node=peer.node, address=peer.address, port=peer.port)
            for peer in offer.peers
        ],
    )


def decode_offer(message: pb.WeightsOffer) -> WeightsOffer | None:
    """Return it; None if nobody has them."""
    if not message.manifest or not message.peers:
        return None
    return WeightsOffer(
        manifest=message.manifest,
        peers=tuple(
            WeightsPeer(node=NodeId(peer.node), address=peer.address, port=peer.port)
            for peer in message.peers
        ),
    )
