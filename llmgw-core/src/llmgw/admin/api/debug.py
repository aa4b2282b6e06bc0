"""What the process is doing: its tasks, and where its time goes."""

from __future__ import annotations

import asyncio
import importlib
import io
from typing import Annotated

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from llmgw.admin.operations import Call, Operation
from llmgw.adminapi.reply import Request
from llmgw.errors import NotAvailable
from llmgw.store.tokens import Role


class ProfileQuery(Request):
    """For how long."""

    seconds: Annotated[float, Field(gt=0, le=60)] = 5.0


async def tasks(_call: Call) -> Response:
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        task.print_stack(limit=20, file=text)
    return PlainTextResponse(text.getvalue())


async def profile(call: Call) -> Response:
    try:
        pyinstrument = importlib.import_module("pyinstrument")
    except ModuleNotFoundError:
        raise NotAvailable(
            "profiling needs a package that is not installed; run: pip install 'llmgw-core[debug]'"
        ) from None
    profiler = pyinstrument.Profiler(async_mode="disabled")
    profiler.start()
    try:
        await call.parts.clock.sleep(call.query_as(ProfileQuery).seconds)
    finally:
        profiler.stop()
    return PlainTextResponse(profiler.output_text(unicode=True, show_all=True))


OPERATIONS = (
    Operation(
        method="GET",
        path="/debug/tasks",
        role=Role.ADMIN,
        summary="The stacks of all tasks of this process.",
        handler=tasks,
        media_type="text/plain",
    ),
    Operation(
        method="GET",
        path="/debug/profile",
        role=Role.ADMIN,
        summary="Where this process spends its time, sampled for some seconds.",
        handler=profile,
        query=ProfileQuery,
        media_type="text/plain",
    ),
)
