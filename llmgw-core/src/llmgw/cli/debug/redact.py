"""Takes secrets out of what leaves the machine. Pure.

The server masks what it knows to be secret already; this is the second net, for what engines
and operators wrote where it does not belong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from llmgw.config.display import MASK
from llmgw.config.problems import is_hidden

_SECRETS = re.compile(
    r"""
    (?P<ours>\bllmgw(?:admin)?_[0-9a-f]{12}_)[^\s"',;]+  # API keys and admin tokens: the id stays
    | (?P<join>\bllmgw1\.[^.\s"']+\.)[^\s"',;]+           # join tokens, likewise
    | (?P<scheme>\b(?:bearer|basic)\s+)[^\s"',;]+
    | (?P<url>[a-z][a-z0-9+.-]*://)[^/\s"'@]+@            # user and password of a URL
    | (?P<known>\b(?:hf|sk|ghp|glpat|xox[a-z])[_-])[0-9A-Za-z_-]{8,}
    | (?P<named>
        [\w-]*(?:secret|token|password|passwd|api[_-]?key|credential|authorization)["']?
        \s*[=:]\s*["']?
      )
      (?:(?:bearer|basic)\s+)?[^\s"',;]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)


def redacted(text: str) -> str:
    """Return a text with everything masked that looks like a secret."""
    return _SECRETS.sub(_masked, _PEM.sub(MASK, text))


def redacted_json(text: str) -> str:
    """Return a JSON document likewise, and with the values masked whose names say so.

    What is no JSON is treated as a text.
    """
    try:
        value = json.loads(text)
    except ValueError:
        return redacted(text)
    return json.dumps(_clean(value, ()), indent=2, ensure_ascii=False)


def _masked(match: re.Match[str]) -> str:
    kept = next((part for part in match.groups() if part), "")
    return f"{kept}{MASK}@" if match["url"] else f"{kept}{MASK}"


def _clean(value: object, steps: tuple[str, ...]) -> object:
    if isinstance(value, str):
        return MASK if is_hidden(steps) else redacted(value)
    if isinstance(value, Mapping):
        return {str(key): _clean(item, (*steps, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, steps) for item in value]
    return value
