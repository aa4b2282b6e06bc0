"""What the overview shows: the cluster in one glance, its last minutes, what needs a look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmgw.admin.api import fleet, history, status
from llmgw.admin.operations import Call
from llmgw.admin.pages.plots import Bar, bars, pulse_plots
from llmgw.admin.pages.texts import moment
from llmgw.admin.paging import PageQuery
from llmgw.adminapi.fleet import ModelReply

_HOUR_S, _HOURS = 3600.0, 24
_MOST_MODELS = 30
_AS_IT_SHOULD_BE = frozenset({"serving", "asleep"})


async def overview(call: Call) -> Mapping[str, Any]:
    placed = () if call.parts.view is None else call.parts.view.models()
    listed = await fleet.read_models(replace(call, query=PageQuery()), placed)
    cluster = await status.read_status(call.parts, placed)
    models = sorted(listed.models, key=_trouble_first)
    shown: dict[str, Any] = {
        "cluster": cluster,
        "plots": pulse_plots(call.parts.pulse.beats(), devices_total=cluster.devices_total),
        "models": models[:_MOST_MODELS],
        "more_models": max(0, sum(cluster.models.values()) - _MOST_MODELS),
        "events": (),
        "hours": (),
    }
    if call.parts.store is not None:
        latest = replace(call, query=history.EventsQuery(limit=8))
        shown |= {
            "events": (await history.events(latest)).events,
            "hours": await _last_hours(call),
        }
    return shown


def _trouble_first(model: ModelReply) -> tuple[bool, str]:
    return model.state in _AS_IT_SHOULD_BE, model.name


async def _last_hours(call: Call) -> tuple[Bar, ...]:
    now = call.parts.clock.wall()
    asked = history.UsageQuery(by="hour", since=now - _HOURS * _HOUR_S)
    usage = await history.usage(replace(call, query=asked))
    by_hour = {int((row.start_at or 0) // _HOUR_S): row.requests for row in usage.rows}
    last = int(now // _HOUR_S)
    return tuple(
        bars(
            [
                (moment(hour * _HOUR_S)[11:16], float(by_hour.get(hour, 0)))
                for hour in range(last - _HOURS + 1, last + 1)
            ]
        )
    )
