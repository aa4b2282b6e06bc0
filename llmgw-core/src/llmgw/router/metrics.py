"""Counters and histograms of the data plane, and the page that shows them.

Our own, because of price: a labelled prometheus-client histogram costs 2 µs an observation
and 160 µs a scrape; these are a bisect and two additions, bound once per (model,
endpoint), and the page is written a few series at a time so that a scrape never stalls a
stream. Labels come from the routing table and from closed sets only, never from a request:
an unknown model is `other` (C058).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import anyio.lowlevel

from llmgw.domain.roles import Role

DURATION_BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0,
)  # fmt: skip
FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
)  # fmt: skip
PER_TOKEN_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
OTHER = "other"
NO_FAILURES = frozenset({"ok", "client_left", "client_error"})
"""Outcomes that are nobody's fault but the client's."""


class Histogram:
    """Counts per bucket; `observe` is the only thing on the request path."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Series:
    """Everything counted of one model on one endpoint. Fields are added to directly."""

    __slots__ = (
        "cached_tokens",
        "completion_tokens",
        "duration",
        "endpoint",
        "first_token",
        "in_flight",
        "model",
        "outcomes",
        "per_token",
        "prompt_tokens",
        "retries",
        "role",
    )

    def __init__(self, model: str, endpoint: str, role: str = "") -> None:
        self.model = model
        self.endpoint = endpoint
        self.role = role  #: half of its requests that it computes; "": whole requests
        self.in_flight = 0
        self.retries = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.outcomes: dict[str, int] = {}
        self.duration = Histogram(DURATION_BOUNDS)
        self.first_token = Histogram(FIRST_TOKEN_BOUNDS)
        self.per_token = Histogram(PER_TOKEN_BOUNDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What other rooms count, read when the page is asked for."""

    queued: int
    idle_connections: int
    access_dropped: int  #: since the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all series since the start. They fall when the series of an endpoint go."""

    requests: int = 0
    failed: int = 0  #: by engine or gateway; what clients did wrong or gave up is none
    output_tokens: int = 0
    first_token: tuple[int, ...] = (0,) * (len(FIRST_TOKEN_BOUNDS) + 1)
    """Streams by time to first token: one count for each bound, the last for all above."""


class RouterMetrics:
    """The series of one router."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}
        self.refused: dict[tuple[str, int], int] = {}
        """Requests that no engine got, by (model or `other`, status)."""
        self.connections = 0
        self.connections_refused = 0
        self._endpoints: frozenset[str] | None = None  #: of the table; None: there was none yet
        self._models: frozenset[str] | None = None

    def series(self, model: str, endpoint: str, role: str = "") -> Series:
        """Return the series of a model of the table on one of its endpoints."""
        key = (model, endpoint)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = Series(model, endpoint, role)
        return found

    def count_refused(self, model: str | None, status: int) -> None:
        """Count a request that ended before any engine had it; None: a model nobody knows."""
        key = (model or OTHER, status)
        self.refused[key] = self.refused.get(key, 0) + 1

    def keep_only(self, endpoints: frozenset[str], models: frozenset[str]) -> None:
        """Drop the series of endpoints and models that are gone, once nothing runs on them.

        What still runs is shown to its end, and once more.
        """
        self._endpoints, self._models = endpoints, models
        self._drop_gone()

    def _drop_gone(self) -> None:
        endpoints, models = self._endpoints, self._models
        if endpoints is None or models is None:
            return
        for key in [
            key
            for key, series in self._series.items()
            if not series.in_flight and (key[1] not in endpoints or key[0] not in models)
        ]:
            del self._series[key]
        for refused in [key for key in self.refused if key[0] not in models and key[0] != OTHER]:
            del self.refused[refused]

    def totals(self) -> Totals:
        """Return the sums; a millisecond for a thousand series.

        A request that two engines share counts once, where its answer comes from.
        """
        every = [item for item in self._series.values() if item.role != Role.PREFILL]
        outcomes = [pair for item in every for pair in item.outcomes.items()]
        first_token = [item.first_token.counts for item in every]
        return Totals(
            requests=sum(count for _, count in outcomes) + sum(self.refused.values()),
            failed=sum(count for outcome, count in outcomes if outcome not in NO_FAILURES)
            + sum(count for (_, status), count in self.refused.items() if status >= 500),
            output_tokens=sum(item.completion_tokens for item in every),
            first_token=tuple(map(sum, zip(*first_token, strict=True)))
            if first_token
            else Totals().first_token,
        )

    async def render(self, now: Now) -> bytes:
        """Return the page in Prometheus' text format."""
        parts: list[str] = []
        for count, block in enumerate(self._blocks(now)):
            parts.append(block)
            if count % 20 == 0:
                # About half a millisecond of writing: then streams get their turn.
                await anyio.lowlevel.checkpoint()
        self._drop_gone()
        return "".join(parts).encode()

    def _blocks(self, now: Now) -> Iterator[str]:
        every = list(self._series.values())
        yield from _counter(
            "llmgw_requests",
            "Requests that an engine had, by how they ended.",
            (
                (f"{_labels(item)},outcome={_quoted(outcome)}", count)
                for item in every
                for outcome, count in list(item.outcomes.items())
            ),
        )
        yield from _counter(
            "llmgw_refused_requests",
            "Requests that no engine had, by status.",
            (
                (f'model={_quoted(model)},status="{status}"', count)
                for (model, status), count in list(self.refused.items())
            ),
        )
        yield from _counter(
            "llmgw_retries",
            "Second tries, counted at the endpoint that failed.",
            ((_labels(item), item.retries) for item in every),
        )
        yield from _counter(
            "gen_ai_client_token_usage",
            "Tokens as engines counted them; cached ones are part of input.",
            (
                (f'{_labels(item)},gen_ai_token_type="{kind}"', count)
                for item in every
                for kind, count in (
                    ("input", item.prompt_tokens),
                    ("cached", item.cached_tokens),
                    ("output", item.completion_tokens),
                )
            ),
        )
        yield from _gauge(
            "llmgw_requests_in_flight",
            "Requests at an engine now.",
            ((_labels(item), item.in_flight) for item in every),
        )
        yield from _histogram(
            "gen_ai_server_request_duration_seconds",
            "From the request's last byte in to the answer's last byte out.",
            ((_labels(item), item.duration) for item in every),
        )
        yield from _histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the request's last byte in to the first event of a stream.",
            ((_labels(item), item.first_token) for item in every),
        )
        yield from _histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean over one stream, after its first token.",
            ((_labels(item), item.per_token) for item in every),
        )
        yield from _gauge(
            "llmgw_connections", "Client connections open now.", (("", self.connections),)
        )
        yield from _counter(
            "llmgw_refused_connections",
            "Client connections over the limit.",
            (("", self.connections_refused),),
        )
        yield from _gauge(
            "llmgw_queued_requests",
            "Requests that wait for a slot, or for a model to wake.",
            (("", now.queued),),
        )
        yield from _gauge(
            "llmgw_idle_engine_connections",
            "Connections to engines kept open for the next request.",
            (("", now.idle_connections),),
        )
        yield from _counter(
            "llmgw_dropped_access_records",
            "Lines of the access log that were left out, because writing them was too slow.",
            (("", now.access_dropped),),
        )


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _labels(series: Series) -> str:
    labels = f"model={_quoted(series.model)},endpoint={_quoted(series.endpoint)}"
    return f'{labels},role="{series.role}"' if series.role else labels


def _counter(name: str, text: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name}_total {text}\n# TYPE {name}_total counter\n"
    for labels, value in samples:
        yield f"{name}_total{{{labels}}} {value}\n" if labels else f"{name}_total {value}\n"


def _gauge(name: str, text: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def _histogram(name: str, text: str, samples: Iterable[tuple[str, Histogram]]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} histogram\n"
    for labels, histogram in samples:
        lines: list[str] = []
        running = 0
        for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
            running += count
            lines.append(f'{name}_bucket{{{labels},le="{bound:g}"}} {running}\n')
        running += histogram.counts[-1]
        lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {running}\n')
        lines.append(f"{name}_sum{{{labels}}} {histogram.total:.6f}\n")
        lines.append(f"{name}_count{{{labels}}} {running}\n")
        yield "".join(lines)
