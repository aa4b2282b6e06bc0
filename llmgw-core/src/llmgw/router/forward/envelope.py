"""A request as the router understands it: the little that it reads, and the bytes it passes on."""

from __future__ import annotations

import msgspec

from llmgw.contracts.balancing import RoutedRequest
from llmgw.router.keys import Charge, KeyGrant
from llmgw.router.routes import Route
from llmgw.router.table import ModelRoute


class Envelope(msgspec.Struct, kw_only=True):
    """One request on its way. A struct, for price: it is made for each request."""

    route: Route
    target: ModelRoute  #: what the asked name means in the table that it was looked up in
    model: str  #: as asked
    body: bytes | bytearray
    content_type: bytes
    passed_headers: bytes  #: serialised headers of the client that engines may see
    request_id: bytes
    client: str = ""  #: address of the client, as far as it is known
    routed: RoutedRequest
    stream: bool = False
    stream_given: bool = False  #: the body has a field `stream`, true or not
    stream_options_given: bool = False
    wants_usage: bool = False  #: the client itself asked for usage in its stream
    model_span: tuple[int, int] | None = None  #: of the name in a form, quotes not included
    profile: str | None = None  #: routing profile that the client chose
    priority: int  #: rank of its class, 0 the most urgent
    grant: KeyGrant
    charge: Charge  #: what the key has been charged until the true figures are known
    wants_reasons: bool = False
    started: float = 0.0  #: monotonic seconds, when the last byte was in
    reply_headers: bytes = b""  #: of every answer: request id, rate limits
    span: object = None  #: the tracing's own, where there is one
