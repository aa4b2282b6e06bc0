"""Offers of another protocol, which are declined by reading the request as if it had none."""

from __future__ import annotations

from llmgw.router.ingress import Request


def without_offer(offered: Request) -> bytes:
    """Return the head of a request that offers another protocol, without the offer (RFC 9110 7.8)."""
    version = b"1.1" if offered.is_http11 else b"1.0"
    lines = [b"%b %b HTTP/%b" % (offered.method, offered.target, version)]
    for name, value in offered.headers:
        if name == b"connection":
            value = b"close" if b"close" in value.lower() else b"keep-alive"
        if name not in (b"upgrade", b"http2-settings"):
            lines.append(b"%b: %b" % (name, value))
    if offered.length is not None:
        lines.append(b"content-length: %d" % offered.length)
    return b"\r\n".join((*lines, b"", b""))
