"""Keeps the digest of the authorities in force at hand, so that no heartbeat waits for the store."""

from __future__ import annotations

import anyio
import anyio.abc
import anyio.to_thread

from llmgw.clock import Clock
from llmgw.contracts.trust import NodeTrust
from llmgw.errors import LlmgwError
from llmgw.logs import get_logger
from llmgw_agent.wire.authorities import authorities_digest

log = get_logger(__name__)

_READ_EVERY_S = 5.0


class AuthorityWatch:
    """The newest digest; "" before the first reading."""

    def __init__(self, trust: NodeTrust, clock: Clock, *, every_s: float = _READ_EVERY_S) -> None:
        self._trust = trust
        self._clock = clock
        self._every_s = every_s
        self.digest = ""

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Read again and again until cancelled; started after the first reading."""
        self.digest = await anyio.to_thread.run_sync(self._read)
        task_status.started()
        while True:
            await self._clock.sleep(self._every_s)
            try:
                self.digest = await anyio.to_thread.run_sync(self._read)
            except LlmgwError as error:
                log.warning("authorities cannot be read", reason=str(error), next="read again")

    def _read(self) -> str:
        return authorities_digest(self._trust.server_identity().client_roots)
