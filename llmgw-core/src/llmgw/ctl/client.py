"""Asks the admin API. httpx is imported with this module, so commands import it late."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from llmgw.adminapi.reply import PREFIX, ErrorReply, Reply
from llmgw.ctl.target import Target, is_here
from llmgw.errors import ConfigError, PermanentError, Problem, RequestError, TransientError

T = TypeVar("T", bound=Reply)

# Planning a large catalog takes the server two seconds; a node may take ten to answer.
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_PLAN = "/plan"  #: is sent, and changes nothing
_LONG = httpx.Timeout(30.0, connect=5.0, read=None)


class Client:
    """One server. Raises TransientError if it cannot be reached, RequestError for its refusals."""

    def __init__(
        self,
        target: Target,
        transport: httpx.BaseTransport | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """tell: hears, for the person, that a change goes to another server than the named one."""
        self._target = target
        self._tell = tell
        self.only_looks = False  #: what would change something is refused
        headers = {"user-agent": "llmgw-ctl"}
        if target.token is not None:
            headers["authorization"] = f"Bearer {_header_safe(target.token.reveal())}"
        # Proxies of the environment are for the internet, not for one's own servers.
        trust = trust_of(target)
        with self._translated():
            self._http = httpx.Client(
                base_url=target.server,
                headers=headers,
                timeout=_TIMEOUT,
                trust_env=False,
                transport=transport,
                verify=trust,
            )

    def get(self, path: str, **query: object) -> str:
        """Return the body of a GET as sent. Query values of None are left out."""
        return self._send("GET", path, query=query).text

    def get_root(self, path: str) -> str:
        """Return the body of a GET outside of the API, such as `/metrics`."""
        return self._ask("GET", path).text

    def read(self, kind: type[T], path: str, **query: object) -> T:
        """Return a GET's reply as a value."""
        return parse(kind, self.get(path, **query))

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        etag: str | None = None,
        is_long: bool = False,
        **query: object,
    ) -> str:
        """Return the body of the answer to a request that changes something.

        is_long: it may take hours, since it comes when a node has done its work.

        A server that does not lead says which one does; the request is repeated there, once and
        with the same token, unless the token would be less safe on that way than on the first.
        """
        if self.only_looks and path != _PLAN:
            raise PermanentError("that changes something, so it is not done again and again")
        headers = {} if etag is None else {"if-match": etag}
        timeout = _LONG if is_long else _TIMEOUT
        asked: dict[str, Any] = {"json": body, "headers": headers, "timeout": timeout}
        try:
            return self._send(method, path, query=query, **asked).text
        except NotLeading as refusal:
            leader = refusal.leader_url
            if leader is None or not _is_as_safe(leader, self._target.server):
                raise
        self._tell(f"{self._target.server} does not lead; sent to {leader}, which does")
        return self._send(method, path, server=leader, query=query, **asked).text

    @contextmanager
    def stream(self, path: str, **query: object) -> Iterator[Iterator[str]]:
        """Yield the lines of an answer as they come; it may go on for ever."""
        with (
            self._translated(),
            self._http.stream(
                "GET",
                PREFIX + path,
                params=_present(query),
                timeout=_LONG,
            ) as response,
        ):
            if response.is_error:
                response.read()
                raise _refusal(response)
            yield response.iter_lines()

    def close(self) -> None:
        self._http.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        server: str = "",
        query: Mapping[str, object],
        json: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> httpx.Response:
        return self._ask(
            method,
            server + PREFIX + path,
            query=query,
            json=json,
            headers=headers,
            timeout=timeout,
        )

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        json: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> httpx.Response:
        with self._translated():
            response = self._http.request(
                method,
                path,
                params=_present(query or {}),
                json=json,
                headers=headers,
                timeout=timeout,
            )
        if response.is_error:
            raise _refusal(response)
        return response

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.InvalidURL:
            message = f"{self._target.server!r} is no URL; one looks like http://HOST:8081"
            raise ConfigError("llmgw ctl", [Problem(path="--server", message=message)]) from None
        except httpx.TimeoutException as error:
            raise TransientError(f"{_asked(error)} did not answer in time") from None
        except httpx.HTTPError as error:
            raise TransientError(f"{_asked(error)} cannot be reached {_why(error)}") from None


class NotLeading(RequestError):
    """The server does not lead; `leader_url` is where the one is that does, if that is known."""

    def __init__(self, message: str, *, status: int, leader_url: str | None) -> None:
        super().__init__(message, status=status, code="not_leader")
        self.leader_url = leader_url


def trust_of(target: Target) -> ssl.SSLContext:
    """Return how certificates of servers are checked. Raises ConfigError naming the file.

    Also where the target has none: a server that follows may name a leader that has one.
    """
    try:
        return ssl.create_default_context(cafile=target.server_ca)
    except OSError as error:
        is_content = isinstance(error, ssl.SSLError)
        reason = "it holds no certificate in PEM" if is_content else error.strerror
        message = f"{target.server_ca} cannot be used: {reason}"
        raise ConfigError("llmgw ctl", [Problem(path="--server-ca", message=message)]) from None


def _is_as_safe(leader: str, asked: str) -> bool:
    """Return whether a token that went to `asked` is as safe on its way to `leader`.

    Not from TLS to plain text, nor in plain text from this machine into a network; and to nothing
    but a server's bare address, as servers name theirs.
    """
    if not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+", leader):
        return False
    return leader.startswith("https:") or (
        asked.startswith("http:") and (is_here(leader) or not is_here(asked))
    )


def _asked(error: httpx.HTTPError) -> str:
    url = error.request.url
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _why(error: httpx.HTTPError) -> str:
    """Return what went wrong, and what to do about it."""
    if "WRONG_VERSION_NUMBER" in str(error):
        return "by TLS: it speaks plain HTTP, so name it by http://"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        reason = re.sub(r"^.*verify failed: | \(_ssl.*$", "", str(error))
        return f"safely ({reason}); --server-ca FILE names who vouches for it"
    if isinstance(error, httpx.RemoteProtocolError):
        return f"({error}); where it speaks TLS, name it by https://"
    return f"({error}); is the server running? Another one is named by --server URL or a context"


def parse(kind: type[T], text: str) -> T:
    """Read a reply. Raises PermanentError if the other end is no admin API, or a newer one."""
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise PermanentError(
            f"the server's answer is no {kind.__name__}; is this the admin address (8081, not "
            "8080), and is llmgw here at least as new as there?"
        ) from None


def escape(name: str) -> str:
    """Return a name as one or more parts of a path; slashes of model names stay."""
    return quote(name, safe="/")


def _present(query: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }


def _header_safe(token: str) -> str:
    # httpx refuses such headers with an error that shows them; the server refuses them politely.
    return token if token.isascii() and token.isprintable() else "invalid"


def _refusal(response: httpx.Response) -> RequestError:
    try:
        error = ErrorReply.model_validate(json.loads(response.text)).error
    except (ValueError, ValidationError):
        return RequestError(
            f"the server answered {response.status_code} and no reason; is this the admin address?",
            status=response.status_code,
        )
    if error.code == "not_leader":
        url = error.leader_url
        return NotLeading(error.message, status=response.status_code, leader_url=url)
    return RequestError(error.message, status=response.status_code, code=error.code)
