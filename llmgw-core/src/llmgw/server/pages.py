"""Parts of the metrics page that are no router's: a server's own, and sums of several pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.router.metrics import NO_FAILURES, Totals


def own_page(*, reload_failed: bool) -> bytes:
    """Return what a server says of itself, beside router and fleet."""
    return (
        "# HELP llmgw_config_reload_failed Whether the newest configuration files are not in force.\n"
        "# TYPE llmgw_config_reload_failed gauge\n"
        f"llmgw_config_reload_failed {int(reload_failed)}\n"
    ).encode()


def summed_pages(pages: Iterable[bytes]) -> bytes:
    """Return one page in Prometheus' text format, each series the sum of its namesakes.

    Right for counters, histograms and for gauges of things that one process has alone, such
    as requests in flight; our routers export no others. Order and comments are those of the
    first page that has them.
    """
    lines: list[str] = []  # comments, and the names of series where their sums will stand
    sums: dict[str, float] = {}
    seen: set[str] = set()
    for page in pages:
        for line in page.decode("utf-8", "replace").splitlines():
            if line.startswith("#") or not line.strip():
                if line and line not in seen:
                    seen.add(line)
                    lines.append(line)
                continue
            series, _, value = line.rpartition(" ")
            if series not in sums:
                lines.append(series)
            sums[series] = sums.get(series, 0.0) + float(value)
    return "".join(
        f"{line}\n" if line.startswith("#") else f"{line} {_number(sums[line])}\n"
        for line in _grouped(lines)
    ).encode()


def totals_of(page: bytes) -> Totals:
    """Return the sums over all series of a page, as `RouterMetrics.totals` makes them of one router.

    For routers in other processes, of which we have nothing but their pages.
    """
    requests = failed = tokens = 0.0
    buckets: dict[float, float] = {}
    for line in page.decode("utf-8", "replace").splitlines():
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if name == "llmgw_requests_total":
            requests += float(value)
            failed += float(value) * (_label(series, "outcome") not in NO_FAILURES)
        elif name == "llmgw_refused_requests_total":
            requests += float(value)
            failed += float(value) * (_label(series, "status") >= "500")
        elif name == "gen_ai_client_token_usage_total":
            tokens += float(value) * (_label(series, "gen_ai_token_type") == "output")
        elif name == "gen_ai_server_time_to_first_token_seconds_bucket":
            bound = float(_label(series, "le"))
            buckets[bound] = buckets.get(bound, 0.0) + float(value)
    below = [int(buckets[bound]) for bound in sorted(buckets)]
    return Totals(
        requests=int(requests),
        failed=int(failed),
        output_tokens=int(tokens),
        first_token=tuple(map(int.__sub__, below, [0, *below])) or Totals().first_token,
    )


def _label(series: str, name: str) -> str:
    # The last one of a series, whose value is from a closed set and so has nothing escaped.
    return series.rpartition(f'{name}="')[2].partition('"')[0]


def _grouped(lines: list[str]) -> list[str]:
    """Put series that only a later page had behind their family, where the format wants them."""
    families: dict[str, list[str]] = {}
    for line in lines:
        families.setdefault(_family(line), []).append(line)
    return [line for family in families.values() for line in family]


def _family(line: str) -> str:
    if line.startswith("#"):
        return line.split(" ")[2]
    name = line.partition("{")[0]
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
