"""The log of a node, of one of its engines, or of this server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from llmgw.admin.api import fleet, work
from llmgw.admin.operations import Call
from llmgw.admin.pages.texts import harmless, pieces
from llmgw.adminapi.work import LogSourceReply
from llmgw.errors import LlmgwError, NotAvailable

_SHOWN_LINES = 500
_SAVED_LINES = 10_000
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


async def logs(call: Call) -> Mapping[str, Any]:
    """Return what the page shows: what is wrong with a log does not hide which others there are."""
    chosen = call.request.query_params
    node, source, search = (
        chosen.get("node", ""),
        chosen.get("source", ""),
        chosen.get("search", ""),
    )
    sources: tuple[LogSourceReply, ...] = ()
    problem = ""
    lines: list[str] = []
    try:
        if node:
            at_node = replace(call, path_values={"node": node})
            sources = (await work.log_sources(at_node)).sources
            # The form may still name a log of the node that was chosen before.
            if source not in {item.name for item in sources}:
                source = "agent"
        lines = await _lines(call, node, source, _SHOWN_LINES)
    except LlmgwError as error:
        problem = str(error)
    found = [line for line in map(harmless, lines) if search.lower() in line.lower()]
    return {
        "nodes": _node_ids(call),
        "node_id": node,
        "source": source,
        "sources": sources,
        "search": search,
        "follow": chosen.get("follow", "yes") == "yes",
        "lines": [tuple(pieces(line, search)) for line in found],
        "problem": problem,
    }


async def download(call: Call) -> Response:
    """Return a log as a file. Browsers must not make anything of it (`nosniff` is always sent)."""
    chosen = call.request.query_params
    node, source = chosen.get("node", ""), chosen.get("source", "")
    lines = await _lines(call, node, source or "agent", _SAVED_LINES)
    name = _NAME.sub("-", f"{node or 'server'}-{source or 'log'}").strip("-.") or "log"
    return Response(
        "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"),
        media_type="text/plain; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}.log"'},
    )


async def _lines(call: Call, node: str, source: str, most: int) -> list[str]:
    if not node:
        return [line.rstrip("\n") for line in list(call.parts.server_log)[-most:]]
    query = work.LogQuery(source=source, lines=most)
    return await work.read_lines(replace(call, path_values={"node": node}, query=query))


def _node_ids(call: Call) -> list[str]:
    try:
        return [item.record.id for item in fleet.view_of(call).nodes()]
    except NotAvailable:
        return []
