"""Mistakes of a weight source, which may be a plugin's, end its fetch and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmgw.contracts.weights import WeightSource
from llmgw.errors import LlmgwError, TransientError
from llmgw.logs import get_logger
from llmgw_agent.node.weights.entries import Cancelled

log = get_logger(__name__)


@contextmanager
def contained(source: WeightSource, ref: str) -> Iterator[None]:
    """Raise TransientError for what no source may raise.

    It would end the agent otherwise, and with it the care for every engine of the node.
    """
    try:
        yield
    except (LlmgwError, OSError, Cancelled):
        raise
    except Exception as error:
        log.exception("weight source failed", scheme=source.scheme, ref=ref)
        raise TransientError(
            f"weights {ref}: the source {source.scheme!r} failed: {type(error).__name__}: {error}"
        ) from error
