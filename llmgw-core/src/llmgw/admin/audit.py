"""Every change that an operator makes is in the timeline and in the log."""

from __future__ import annotations

from llmgw.admin.operations import Changed
from llmgw.admin.parts import AdminParts
from llmgw.errors import StoreUnavailable
from llmgw.logs import get_logger

log = get_logger(__name__)


async def record_change(parts: AdminParts, who: str, change: Changed) -> None:
    """Note what was done, by whom. Never raises for a store that is away."""
    if not change.happened:
        return
    log.info("operator changed something", who=who, kind=change.kind, subject=change.subject)
    store = parts.store
    if store is None:
        return
    try:
        await store.run(
            lambda: store.events.add(
                change.kind,
                change.subject,
                change.message,
                who=who,
                before=change.before,
                after=change.after,
            )
        )
    except StoreUnavailable as error:
        # What was asked has been done; saying that it failed would have it done twice.
        log.error("audit event not stored", kind=change.kind, reason=str(error))
