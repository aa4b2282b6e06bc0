"""The last minutes: rates between two readings, quantiles over one minute, bounded memory."""

from __future__ import annotations

import pytest

from llmgw.admin.pages.plots import HEIGHT, pulse_plots, strokes
from llmgw.admin.pulse import Pulse, Reading, quantile
from llmgw.router.metrics import FIRST_TOKEN_BOUNDS, Now, RouterMetrics, Totals
from llmgw.server.pages import totals_of


def counted(requests: int, tokens: int = 0, *, fast: int = 0, slow: int = 0) -> Totals:
    """Streams counted as fast began within a millisecond, slow ones after a minute."""
    first_token = [0] * (len(FIRST_TOKEN_BOUNDS) + 1)
    first_token[0], first_token[-1] = fast, slow
    return Totals(requests=requests, output_tokens=tokens, first_token=tuple(first_token))


def test_rates_are_what_two_readings_differ_by() -> None:
    pulse = Pulse()
    pulse.add(Reading(at=10.0, totals=counted(5, 100)))
    pulse.add(Reading(at=12.0, totals=counted(9, 300), queued=3))
    (beat,) = pulse.beats()
    assert (beat.requests_per_s, beat.tokens_per_s, beat.queued) == (2.0, 100.0, 3)


def test_an_endpoint_that_goes_takes_nothing_below_zero() -> None:
    pulse = Pulse()
    pulse.add(Reading(at=0.0, totals=counted(50, 1000, fast=7)))
    pulse.add(Reading(at=2.0, totals=counted(1)))
    (beat,) = pulse.beats()
    assert (beat.requests_per_s, beat.tokens_per_s) == (0.0, 0.0)
    assert beat.first_token_p50_s is None


def test_quantiles_look_one_minute_back() -> None:
    pulse = Pulse()
    for second in range(0, 140, 2):
        pulse.add(Reading(at=float(second), totals=counted(0, fast=min(second, 20))))
    beats = pulse.beats()
    assert beats[20].first_token_p50_s is not None
    assert beats[-1].first_token_p50_s is None
    assert pulse.newest() == beats[-1]


@pytest.mark.parametrize("times", [(0.0, 2.0), (0.0, 300.0), (0.0, 2.0, 61.0, 63.0, 200.0)])
def test_the_newest_point_is_the_last_of_all(times: tuple[float, ...]) -> None:
    pulse = Pulse()
    for count, at in enumerate(times):
        assert pulse.newest() == (pulse.beats()[-1] if pulse.beats() else None)
        pulse.add(Reading(at=at, totals=counted(count, fast=count)))
    assert pulse.newest() == pulse.beats()[-1]


def test_old_readings_are_forgotten() -> None:
    pulse = Pulse(keep=3)
    for second in range(100):
        pulse.add(Reading(at=float(second)))
    assert [beat.at for beat in pulse.beats()] == [98.0, 99.0]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [((0, 0, 0), 0.5, None), ((4, 0, 0), 0.5, 0.5), ((1, 1, 0), 0.75, 1.5), ((1, 0, 9), 0.5, 2.0)],
)
def test_quantiles_lie_where_prometheus_puts_them(
    counts: tuple[int, ...], share: float, value: float | None
) -> None:
    assert quantile(counts, share, bounds=(1.0, 2.0)) == value


def test_a_line_breaks_where_nothing_is_known_and_stays_in_its_picture() -> None:
    drawn = strokes([0.0, 5.0, None, 10.0, 10.0, None, 3.0], 10.0)
    assert len(drawn) == 2
    heights = [float(point.split(",")[1]) for line in drawn for point in line.split(" ")]
    assert min(heights) > 0
    assert max(heights) < HEIGHT


def test_every_plot_has_its_newest_value_in_words() -> None:
    pulse = Pulse()
    pulse.add(Reading(at=0.0))
    pulse.add(Reading(at=2.0, totals=counted(400, fast=4), devices_used=3))
    plots = {plot.title: plot for plot in pulse_plots(pulse.beats(), devices_total=8)}
    assert plots["Requests a second"].lines[0].now == "200"
    assert plots["Devices in use"].lines[0].now == "3"
    assert plots["Devices in use"].top == "8"
    assert plots["Time to first token"].lines[1].now.endswith(" ms")
    assert pulse_plots((), devices_total=0)[0].lines[0].now == "-"


@pytest.mark.anyio
async def test_a_page_of_metrics_sums_to_the_same_totals() -> None:
    metrics = RouterMetrics()
    for endpoint, outcome in (("a", "ok"), ("b", "reset")):
        series = metrics.series('odd"{model}', endpoint)
        series.outcomes[outcome] = 3
        series.completion_tokens = 70
        series.prompt_tokens = 1
        series.first_token.observe(0.03)
        series.first_token.observe(1000.0)
    metrics.count_refused("m", 503)
    metrics.count_refused(None, 404)
    page = await metrics.render(Now(queued=0, idle_connections=0, access_dropped=0))
    totals = metrics.totals()
    assert (totals.requests, totals.failed, totals.output_tokens) == (8, 4, 140)
    assert totals_of(page) == totals
