"""Who asks for what: authorise, read, look up, and make the envelope.

The name that is checked against the key is the very value that is looked up and sent on
(C063): everything below takes the route of the table, not a name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec import UNSET

from llmgw.clock import Clock
from llmgw.contracts.balancing import RoutedRequest
from llmgw.domain.keys import Scope
from llmgw.errors import RequestError
from llmgw.router.forward import Client, Envelope, Exchange, ForwardParts
from llmgw.router.forward.poison import fingerprint_of, quarantined, sample_of
from llmgw.router.ingress.form import read_form
from llmgw.router.ingress.request import Request
from llmgw.router.ingress.shape import BodyFields, read_fields
from llmgw.router.keys import KeyGrant, KeyTable
from llmgw.router.routes import ModelPlace, Route
from llmgw.router.selection import Needs
from llmgw.router.table import Table


@dataclass(slots=True)
class Tables:
    """What requests are looked up in. The table is replaced whole by the feed."""

    table: Table
    keys: KeyTable


class Ingress:
    """Turns requests into exchanges."""

    def __init__(self, tables: Tables, forward: ForwardParts) -> None:
        self._tables = tables
        self.keys = tables.keys  #: whose `generation` tells when a grant may have been revoked
        self._forward = forward
        self._clock: Clock = forward.clock
        self._prompt_bytes = forward.selector.prompt_bytes
        self._draw = random.Random().random  # noqa: S311  # spreads load; guards nothing

    def authorise(self, request: Request) -> KeyGrant:
        """Return the grant of the request's key. Needs the head only, so that nobody without a
        key can make the router hold a large body. Raises RequestError."""
        grant = self.keys.authorise(
            request.credentials, address=request.peer, scope=Scope.INFERENCE
        )
        if isinstance(grant, RequestError):
            raise grant
        return grant

    def exchange(self, request: Request, route: Route, grant: KeyGrant, client: Client) -> Exchange:
        """Return the exchange that will answer a complete request, not yet started.

        Raises RequestError for what can be refused without asking anybody.
        """
        try:
            envelope = self._envelope(request, route, grant)
        except RequestError as error:
            self._forward.metrics.count_refused(None, error.status)
            # Its frames know it, and the body: together they would wait for the collector.
            raise error.with_traceback(None) from None
        if self._forward.tracing is not None:
            self._forward.tracing.begin(envelope)
        return Exchange(self._forward, client, envelope)

    def _envelope(self, request: Request, route: Route, grant: KeyGrant) -> Envelope:
        started = self._clock.monotonic()
        fields: BodyFields | None = None
        span = None
        if route.model is ModelPlace.MULTIPART:
            model, span, stream = read_form(request.body, request.content_type)
        else:
            fields = read_fields(request.body, prompt_bytes=self._prompt_bytes)
            model, stream = fields.model, fields.stream is True
        target = self._tables.table.by_name.get(model)
        # A model that the key may not use does not exist for it: names are not given away.
        if target is None or not grant.allows(target):
            raise model_not_found(model)
        admission, selector = self._forward.admission, self._forward.selector
        suspect = b""
        if not selector.quarantine.is_empty:
            suspect = self._suspect(route, request.body, started)
        if request.profile is not None:
            selector.require_profile(request.profile)
        needs = selector.needs(target, request.profile)
        body_bytes = len(request.body)
        charge = grant.begin(body_bytes >> 2)
        if isinstance(charge, RequestError):
            raise charge
        session = None
        if needs.session_header is not None or needs.session_user_field:
            session = _session(request, fields, needs)
        routed = RoutedRequest(
            model=target.name,
            session_key=session,
            prompt=fields.start_of_prompt(route.prompt_fields, needs.prompt_bytes)
            if needs.prompt_bytes and fields is not None
            else b"",
            body_bytes=body_bytes,
            seed=self._draw(),
            suspect=suspect,
        )
        headers = b"x-request-id: %b\r\n" % request.request_id
        if grant.has_rates:
            headers += b"".join(b"%b: %b\r\n" % item for item in grant.rate_headers())
        return Envelope(
            route=route,
            target=target,
            model=model,
            body=request.body,
            content_type=request.content_type or b"application/json",
            passed_headers=request.passed,
            request_id=request.request_id,
            client=request.peer,
            routed=routed,
            stream=stream,
            stream_given=fields is not None and fields.stream is not UNSET,
            stream_options_given=fields is not None and fields.stream_options is not UNSET,
            wants_usage=stream and fields is not None and fields.wants_usage,
            model_span=span,
            profile=request.profile,
            priority=admission.priority(request.priority) if request.priority else admission.usual,
            grant=grant,
            charge=charge,
            wants_reasons=request.wants_reasons,
            started=started,
            reply_headers=headers,
        )

    def _suspect(self, route: Route, body: bytes | bytearray, now: float) -> bytes:
        """Return the request's fingerprint if an engine has died with it in flight, else b"";
        refuse it if two have."""
        quarantine = self._forward.selector.quarantine
        known_as = fingerprint_of(route.path, sample_of(body))
        if quarantine.refuses(known_as, now):
            raise quarantined()
        return known_as if quarantine.is_suspect(known_as, now) else b""


def _session(request: Request, fields: BodyFields | None, needs: Needs) -> str | None:
    """Return what a balancer that keeps sessions together goes by."""
    if needs.session_header is not None:
        value = request.header(needs.session_header.encode())
        if value is not None:
            return value.decode("latin-1")
    return fields.session_user if needs.session_user_field and fields is not None else None


def model_not_found(model: str) -> RequestError:
    """Return the 404 for a name that means nothing here."""
    shown = model[:128].encode("utf-8", "replace").decode()
    return RequestError(
        f"The model {shown!r} does not exist or you have no access to it. "
        "GET /v1/models lists what there is.",
        status=404,
        code="model_not_found",
        param="model",
    )
