"""Checks of values that are written into heads of HTTP messages, where a line break would end the
head and make another message of what follows.

Each returns the value, or raises ValueError that says what it must be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "x-request-id",
    }
)
"""What the router itself writes into the head of a request to an engine."""


def base_url(text: str) -> str:
    """A http or https URL without `/v1`; returned without a slash at its end."""
    url = text.strip().rstrip("/")
    parts = urlsplit(url)
    # First, since the other messages show the URL.
    if "@" in parts.netloc or parts.username is not None:
        raise ValueError("must not hold a user or password; use api_key_file or headers")
    if parts.query or parts.fragment:
        raise ValueError("must end with its path, without ? or #")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be an http or https URL such as http://127.0.0.1:8000, got {url!r}")
    if not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError(f"must have its host as xn--… and its path with %XX, got {url!r}")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"has a host that no name server knows, got {url!r}") from None
    if parts.path.endswith("/v1"):
        raise ValueError(f"must leave out /v1, which is added to each request, got {url!r}")
    _ = parts.port  # raises ValueError where it is no port
    return url


def url_path(text: str) -> str:
    """A path with its slash."""
    if not (text.startswith("/") and text.isascii() and text.isprintable() and " " not in text):
        raise ValueError(f"must be a path such as /health, got {text!r}")
    return text


def one_line(text: str) -> str:
    """Text of one line; letters outside ASCII become question marks in a head."""
    if not text.isprintable():
        raise ValueError(f"must be one line of text, got {text!r}")
    return text


def header_fields(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Header fields for an engine. Their values may be keys, so the error shows none."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"must have names of letters, digits and hyphens, got {name!r}")
        if name.lower() in _OURS:
            raise ValueError(f"must leave out {name!r}, which the router sets")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"must have values of one line in ASCII, that of {name!r} is not")
    return headers
