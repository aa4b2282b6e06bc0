"""The page about the API lists every route and every code that the router can answer with."""

from __future__ import annotations

import re
from pathlib import Path

import llmgw.router
from llmgw.router.front.head import HEADER_COUNT_LIMIT
from llmgw.router.routes import COLD, HOT
from llmgw.router.selection import Outcome

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SOURCES = Path(llmgw.router.__file__).parent
#: Told between servers and routers only; and the name of a function.
INTERNAL = {"unreadable_report", "gateway_timeout"}


def test_every_route_of_an_engine_is_listed_in_order() -> None:
    listed = re.findall(r"^\| `POST (/\S+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(route.path for route in HOT)


def test_every_route_of_our_own_is_listed() -> None:
    listed = re.findall(r"^\| `GET (/\S+)` \|", PAGE, re.MULTILINE)
    assert listed == [route.path for route in COLD]


def test_every_code_is_explained() -> None:
    said: set[str] = set()
    for file in SOURCES.rglob("*.py"):
        text = file.read_text()
        said |= set(re.findall(r'code="([a-z_]+)"', text))
        said |= {f"{limit}_exceeded" for limit in re.findall(r'_limited\(\s*"(\w+)"', text)}
        said |= set(re.findall(r'"(\w+_timeout)"', text))
    explained = set(re.findall(r"`([a-z_]+)`", PAGE.partition("## Errors")[2]))
    assert len(said) > 20
    assert not said - INTERNAL - set(Outcome) - explained


def test_the_limit_of_headers_is_as_said() -> None:
    assert f"over {HEADER_COUNT_LIMIT} headers" in PAGE
