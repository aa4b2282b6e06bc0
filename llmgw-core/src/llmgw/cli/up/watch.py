"""How far the machine is on its way to serving, as the admin API tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import httpx

from llmgw.adminapi.fleet import ModelReply, ModelsReply, NodesReply, ReplicasReply, ShardReply
from llmgw.config.places import ADMIN_TOKEN_FILE
from llmgw.domain.endpoints import ModelState

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look. Empty tuples mean that the server does not answer yet."""

    server_up: bool = False
    agent_connected: bool = False
    models: tuple[ModelReply, ...] = ()
    shards: tuple[ShardReply, ...] = ()

    @property
    def ready(self) -> tuple[ModelReply, ...]:
        """Models that answer, in the catalog's order."""
        return tuple(model for model in self.models if model.ready)

    @property
    def settled(self) -> bool:
        """Whether nothing more will become ready: each model answers, or sleeps until it is asked."""
        return bool(self.models) and all(
            model.ready or model.wanted_min == 0 for model in self.models
        )

    @property
    def stands_still(self) -> bool:
        """Whether the server knows of no way to a model that should run.

        One look says little: a port that a stranger holds is left for the next, and an engine
        that failed once is started again.
        """
        return self.agent_connected and any(
            model.state == ModelState.UNPLACEABLE and not model.ready and model.wanted_min != 0
            for model in self.models
        )


class Watcher:
    """Asks the server that `llmgw up` started."""

    def __init__(self, admin_url: str, state_dir: Path) -> None:
        self._token_file = state_dir / ADMIN_TOKEN_FILE
        self._client = httpx.AsyncClient(base_url=admin_url, trust_env=False, timeout=_TIMEOUT_S)

    async def look(self) -> Progress:
        """Return how far it is. A server that does not answer yet is no error."""
        try:
            nodes = NodesReply.model_validate_json(await self._get("nodes"))
            models = ModelsReply.model_validate_json(await self._get("models"))
            replicas = ReplicasReply.model_validate_json(await self._get("replicas"))
        except (httpx.HTTPError, FileNotFoundError):
            return Progress()
        return Progress(
            server_up=True,
            agent_connected=any(node.connected for node in nodes.nodes),
            models=models.models,
            shards=tuple(shard for replica in replicas.replicas for shard in replica.shards),
        )

    async def _get(self, what: str) -> bytes:
        token = self._token_file.read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        reply = await self._client.get(f"/admin/v1/{what}", headers=headers)
        reply.raise_for_status()
        return reply.content

    async def aclose(self) -> None:
        await self._client.aclose()
