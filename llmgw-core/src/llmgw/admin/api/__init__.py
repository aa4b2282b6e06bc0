"""The operations of the admin API, one module per part of the cluster."""

from llmgw.admin.api import (
    access,
    catalog,
    debug,
    feed,
    fleet,
    history,
    progress,
    status,
    trust,
    work,
)
from llmgw.admin.operations import Operation

__all__ = ["all_operations"]


def all_operations() -> tuple[Operation, ...]:
    """Return every operation, in the order of the OpenAPI document."""
    return (
        *status.OPERATIONS,
        *fleet.OPERATIONS,
        *catalog.OPERATIONS,
        *work.OPERATIONS,
        *progress.OPERATIONS,
        *history.OPERATIONS,
        *access.OPERATIONS,
        *trust.OPERATIONS,
        *feed.OPERATIONS,
        *debug.OPERATIONS,
    )
