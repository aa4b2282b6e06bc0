"""Lets nodes fetch weights from each other, and ends that once one of them is revoked. A shell."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress

from llmgw.clock import Clock
from llmgw.contracts.trust import NodeTrust
from llmgw.domain.ids import NodeId
from llmgw.errors import NodeUnreachable
from llmgw.logs import get_logger
from llmgw_agent.hub.sessions import Sessions
from llmgw_agent.wire.frames import AdmitPeer, WeightsOffer

log = get_logger(__name__)

ADMITTED_S = 300.0
"""How long a node may fetch from another before it must ask again; a revoked one asks in vain."""


class PeerAdmissions:
    """What this server has let nodes fetch, for as long as that lasts."""

    def __init__(
        self, trust: NodeTrust, sessions: Sessions, clock: Clock, *, every_s: float
    ) -> None:
        self._trust = trust
        self._sessions = sessions
        self._clock = clock
        self._every_s = every_s
        #: by who asked: until when it may have which weights where
        self._given: defaultdict[NodeId, dict[tuple[NodeId, str], float]] = defaultdict(dict)

    def admit(self, asker: NodeId, offer: WeightsOffer) -> None:
        """Tell each node of the offer that the asker will come."""
        until = self._clock.monotonic() + ADMITTED_S
        for peer in offer.peers:
            self._tell(peer.node, asker, offer.manifest, for_s=ADMITTED_S)
            self._given[asker][peer.node, offer.manifest] = until

    async def run(self) -> None:
        """Withdraw what revoked nodes were let have, until cancelled."""
        while True:
            await self._clock.sleep(self._every_s)
            now = self._clock.monotonic()
            for asker, given in tuple(self._given.items()):
                lasting = {key: until for key, until in given.items() if until > now}
                if lasting and self._trust.revoked(asker) is not None:
                    for giver, manifest in lasting:
                        self._tell(giver, asker, manifest, for_s=0.0)
                    log.info("revoked node gets no more weights", node=asker)
                    lasting = {}
                if lasting:
                    self._given[asker] = lasting
                else:
                    del self._given[asker]

    def _tell(self, giver: NodeId, asker: NodeId, manifest: str, *, for_s: float) -> None:
        with suppress(NodeUnreachable):  # the asker will find nobody there, and go on
            self._sessions.reach(giver).send(AdmitPeer(node=asker, manifest=manifest, for_s=for_s))
