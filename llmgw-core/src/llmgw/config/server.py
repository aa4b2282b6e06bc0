"""Settings of `llmgw server` and `llmgw router`. Where each value comes from is `loading`'s business.

Figures without a comment of their own are those of docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from llmgw.config.addresses import Address, network
from llmgw.config.heads import base_url, header_fields, one_line, url_path
from llmgw.config.section import Seconds, Section
from llmgw.domain.catalog import Model
from llmgw.domain.ids import model_name_problem
from llmgw.domain.roles import Role


def _listening(text: str) -> str:
    return str(Address.parse(text))


def _listening_or_socket(text: str) -> str:
    return text if text.startswith("unix:/") else _listening(text)


def _admin_url(text: str) -> str:
    url = text.strip().rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path:
        raise ValueError(f"must be a URL such as https://10.0.0.2:8081, got {url!r}")
    return url


def _traces_url(text: str) -> str:
    url = base_url(text)
    return url if urlsplit(url).path else f"{url}/v1/traces"


def _model_name(text: str) -> str:
    if problem := model_name_problem(text.strip()):
        raise ValueError(problem)
    return text.strip()


class StaticEndpoint(Section):
    """An engine that llmgw did not start and does not supervise."""

    id: Annotated[str, Field(min_length=1), AfterValidator(one_line)]
    """Its name in metrics, logs and `llmgw ctl endpoints`."""
    url: Annotated[str, AfterValidator(base_url)]
    """http or https base URL, without `/v1`; a slash at its end is dropped."""
    models: Annotated[tuple[Annotated[str, AfterValidator(_model_name)], ...], Field(min_length=1)]
    """Names that it answers to, the canonical one first."""
    engine: str = ""
    """Adapter whose metrics and errors it has; empty: unknown."""
    pool: Annotated[str, AfterValidator(one_line)] = "static"
    """The part of the fleet that it belongs to, for routing profiles with `pools`."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of traffic among endpoints of equal priority."""
    priority: int = 0
    """Higher is preferred; lower ones get what does not fit."""
    api_key_file: Path | None = None
    """File with the bearer token that the engine asks for."""
    headers: Annotated[Mapping[str, str], AfterValidator(header_fields)] = {}
    """Added to each request."""
    health_path: Annotated[str, AfterValidator(url_path)] | None = "/health"
    """Looked at by the router; null: never."""
    max_inflight: Annotated[int, Field(ge=1)] | None = None
    """Requests at a time; null: not limited."""
    role: Role | None = None
    """The half of each request that it computes, `prefill` or `decode`; null: whole requests."""
    meeting_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Of a prefill engine that decode engines meet at a port of its own (SGLang's
    `--disaggregation-bootstrap-port`); null: the engine's usual one."""


class Deadlines(Section):
    """How long each phase of a request may take."""

    connect: Seconds = 2.0
    """To an engine."""
    first_byte_min: Seconds = 60.0
    """The least time for the first byte of a stream."""
    first_byte_max: Seconds = 600.0
    """A stream's first byte is due after min(max, max(min, 10 + prompt_tokens / 500)) seconds."""
    between_chunks: Seconds = 60.0
    """Of a stream, while the engine says nothing."""
    client_stalled: Seconds = 60.0
    """A client that does not read for this long is cut, and its engine's work with it."""
    whole_request: Seconds | None = None
    """From the first byte in to the last byte out; null: no limit."""
    request_head: Seconds = 10.0
    """For a client to send its request's head."""
    request_body_idle: Seconds = 60.0
    """Between two parts of a request's body."""
    keep_alive: Seconds = 75.0
    """An idle connection of a client is closed after this."""
    queue: Seconds = 30.0
    """Longest wait for a slot of a running model."""
    wake_wait: Seconds = 300.0
    """Longest wait for a sleeping model."""
    hold_commit: Seconds = 10.0
    """A held streaming client gets its 200 and comments after this long."""


class Ejection(Section):
    """When an endpoint is left out, and for how long."""

    failures: Annotated[int, Field(ge=1)] = 5
    """Failures in a row. 4xx and 429 never count."""
    base: Seconds = 30.0
    """Length of the first ejection; each further one is longer by as much."""
    cap: Seconds = 300.0
    """Longest ejection."""
    max_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """At most this share of a model's endpoints, and never the last one."""
    panic_below: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With fewer healthy ones than this share, every ready endpoint is used."""
    slow_start: Seconds = 30.0
    """An endpoint that comes back gets its whole share only after this."""


class Retry(Section):
    """Second tries, only before the first byte."""

    budget: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of the model's requests in ten seconds."""
    budget_floor: Annotated[int, Field(ge=0)] = 3
    """Retries in flight that are always allowed, for models with few requests."""


class HealthChecks(Section):
    """The router's own look at engines."""

    interval: Seconds = 5.0
    """Between two looks at one engine."""
    timeout: Seconds = 10.0
    """A look without an answer for this long has failed."""
    bad: Annotated[int, Field(ge=1)] = 3
    """Failed looks in a row after which it gets no requests."""
    good: Annotated[int, Field(ge=1)] = 2
    """Good looks in a row after which it gets requests again."""
    stuck_after: Seconds = 60.0
    """Requests run but no token counter moves for this long: not ready."""
    load_interval: Seconds = 1.0
    """Between two readings of an engine's metrics page."""


class RoutingProfile(Section):
    """A named way of choosing endpoints."""

    balancer: str = "least_outstanding"
    """Name of a balancer; `llmgw plugins` lists those that there are."""
    options: Mapping[str, object] = {}
    """Options of the balancer, by its own names."""
    pools: tuple[str, ...] = ()
    """Only endpoints of these pools are used; empty: all."""


class Queueing(Section):
    """How many requests may wait, per model."""

    length: Annotated[int, Field(ge=0)] = 1024
    """Requests that wait for one model; further ones are refused with 429."""
    classes: tuple[str, ...] = ("high", "normal", "low")
    """Priority classes, the most urgent first; header `x-llmgw-priority` names one."""


class TracingSettings(Section):
    """Spans of requests and of a leader's orders, for an OpenTelemetry collector. Needs the extra `otel`."""

    endpoint: Annotated[str, AfterValidator(_traces_url)]
    """Where the collector takes OTLP over HTTP, e.g. `http://127.0.0.1:4318`; `/v1/traces` is added
    where there is no path."""
    headers: Mapping[str, SecretStr] = {}
    """Added to each post to the collector, such as its token."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the traces that are kept, chosen by their ids."""
    parent_based: bool = True
    """Where a client brings a `traceparent`, its own choice is kept instead of the share."""


class RouterSettings(Section):
    """The data plane."""

    default_profile: str = "least_outstanding"
    """For models whose entry names no `routing`."""
    profiles: Mapping[str, RoutingProfile] = {}
    """Named routing profiles; every balancer is one by its own name as well."""
    deadlines: Deadlines = Deadlines()
    ejection: Ejection = Ejection()
    retry: Retry = Retry()
    health: HealthChecks = HealthChecks()
    queue: Queueing = Queueing()
    body_limit_mib: Annotated[float, Field(gt=0)] = 64.0
    """Largest request body."""
    max_connections: Annotated[int, Field(ge=1)] = 16384
    """Of clients, at a time."""
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """Likewise, of one address that is not loopback; null: no limit of its own."""
    trusted_proxies: tuple[Annotated[str, AfterValidator(network)], ...] = ()
    """Networks of proxies whose X-Forwarded-For says who the client is; no limit on the connections
    of one address holds for them."""
    path_prefix: str = ""
    """Path below which a proxy mounts the API, e.g. `/llm`."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call the API."""
    access_log: bool = True
    """One log line a request, without its content."""
    tracing: TracingSettings | None = None
    """Spans of requests; null: none, and a client's `traceparent` goes to the engine as it is."""


class ControlSettings(Section):
    """The control plane."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """auto: on when a model declares a profile, `store.url` is set or the catalog is not empty."""
    interval: Seconds = 5.0
    """Longest time between two passes; events wake it earlier."""
    base_backoff: Seconds = 5.0
    """First pause before a failed start is tried again elsewhere; doubled each time."""
    max_backoff: Seconds = 300.0
    """Longest such pause."""
    crash_limit: Annotated[int, Field(ge=1)] = 5
    """Failures in a row after which a replica moves to another place."""
    suspect_after: Seconds = 15.0
    """Silence after which a node gets no new replica."""
    disconnected_after: Seconds = 45.0
    """Silence after which a node counts as disconnected; its endpoints stay."""
    lost_after: Seconds | None = 300.0
    """null: a node never becomes lost by itself."""
    settle: Seconds = 30.0
    """Longest wait for known nodes after a start, before anything is ordered."""
    publish_interval: Seconds = 1.0
    """Longest time between two looks at what routers should know."""
    port_range: tuple[int, int] = (20000, 29999)
    """Ports for engines, inclusive."""
    mgmt_interface: str | None = None
    """Network interface, such as `eth1`, at whose addresses the ranks of a replica over several
    nodes meet, where all of them have it and the fabric has no address of its own; null: at the
    agents' `data_address`."""
    placement_policy: str = "pack"
    """Name of the policy that ranks places: `pack`, `spread`, `fabric`, or a plugin's."""
    dispatcher: str = "grpc"
    """Name of the way to reach nodes."""
    lease_store: str = "store"
    """Name of the way to agree on one leader."""
    peers: tuple[Annotated[str, AfterValidator(_admin_url)], ...] = ()
    """Admin listeners of the other servers, `http(s)://HOST:PORT`. While one of them leads, it is
    told what routers report here. The admin token must be the same everywhere."""
    drain_limit: Seconds = 300.0
    """A replica that is told to go is stopped after this, whatever it still computes."""


class StoreSettings(Section):
    """Where operators' intent and history are kept."""

    url: str | None = None
    """SQLAlchemy URL; null: `<state_dir>/llmgw.db` where a control plane runs."""


class TlsSettings(Section):
    """Certificate of the API and admin listeners; files are read again when they change."""

    certificate: Path | None = None
    """PEM file, the server's own certificate first."""
    key: Path | None = None
    """PEM file."""
    servers_ca: Path | None = None
    """PEM file of who vouches for servers' admin listeners, for `llmgw router` and
    `control.peers`; null: the machine's own roots."""


class OidcSettings(Section):
    """Sign-in to the page by an OpenID provider. Needs the extra `oidc`."""

    issuer: Annotated[str, AfterValidator(base_url)]
    """URL of the provider, below which `/.well-known/openid-configuration` is."""
    client_id: Annotated[str, Field(min_length=1)]
    """As which the provider knows this page; its redirect URI is `<page_url>/admin/oidc/callback`."""
    client_secret_file: Path | None = None
    """File with the client's secret; null: a public client (PKCE is used in either case)."""
    page_url: Annotated[str, AfterValidator(base_url)]
    """Where browsers find the page, e.g. `https://gw.example:8081`."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """What is asked for; the claim below may need one more."""
    name_claim: str = "email"
    """Claim that names people in the events."""
    roles_claim: str = "groups"
    """Claim with a text or a list of texts that `roles` knows."""
    roles: Mapping[str, Literal["viewer", "operator", "admin"]]
    """Role by value of that claim; who has several gets the highest, who has none stays out."""


class AuthSettings(Section):
    """Who may use the API and the admin listener."""

    api_keys: Literal["auto", "on", "off"] = "auto"
    """auto: on unless the API listener is loopback only."""
    admin_on_api: bool | None = None
    """Serve /admin on the API listener; null: only while that is loopback."""
    admin_token_file: Path | None = None
    """null: `<state_dir>/admin.token`, made at first start."""
    oidc: OidcSettings | None = None
    """null: one signs in with an admin token."""
    insecure_bind: bool = False
    """Allow addresses off this machine without TLS and keys."""


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""
    format: Literal["text", "json"] = "text"
    """`json` writes one object a line."""


class ServerSettings(Section):
    """Everything that one server process is told."""

    state_dir: Path | None = None
    """Everything that a server keeps lies below it; null: the platform's state folder."""
    listen: Annotated[str, AfterValidator(_listening)] = "127.0.0.1:8080"
    """Where clients come; `HOST:PORT`, port 0 lets the system choose."""
    admin_listen: Annotated[str, AfterValidator(_listening)] = "127.0.0.1:8081"
    """Where operators come: the admin API, the page, `/metrics`."""
    agent_listen: Annotated[str, AfterValidator(_listening_or_socket)] = "127.0.0.1:8082"
    """Where agents come; `unix:/PATH` for one machine."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Router processes that share the API's port."""
    store: StoreSettings = StoreSettings()
    endpoints: tuple[StaticEndpoint, ...] = ()
    """Engines that already run."""
    models: tuple[Model, ...] = ()
    """Catalog entries that this file owns."""
    catalog_dir: Path | None = None
    """Folder with catalog files; each owns its entries."""
    router: RouterSettings = RouterSettings()
    control: ControlSettings = ControlSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    cluster_secret_file: Path | None = None
    """Secret that encrypts keys in the store; null: one below `state_dir`, made at first start."""
    cluster_secret: SecretStr | None = None
    """The secret itself, where a file is not wanted."""
    log: LogSettings = LogSettings()
    drain_limit: Seconds = 30.0
    """How long open streams may go on after SIGTERM."""
    plugins: Mapping[str, object] = {}
    """Sections of plugins by name; checked against the types that they declare."""
    required_plugins: tuple[str, ...] = ()
    """Distributions whose plugins must load, or the start fails; `*` means every one installed."""
