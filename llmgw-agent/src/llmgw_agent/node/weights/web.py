"""`https://HOST/FILE#sha256=HEX`: one file, proven by its hash, resumed where it stopped."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from llmgw.contracts.weights import FetchContext, FileProof
from llmgw.domain.ids import safe_name_problem
from llmgw.errors import PermanentError, TransientError
from llmgw_agent.node.weights.verify import (
    accept,
    append_pieces,
    is_sha256,
    sha256_of,
)

if TYPE_CHECKING:
    import httpx

_CONNECT_S = 10.0
_SILENCE_S = 60.0


class WebSource:
    """Fetches from public hosts only: a catalog must not reach into the node's own network."""

    scheme = "https"

    def __init__(self, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        """tls: says whom to trust; the machine's authorities unless told otherwise."""
        self._tls = tls

    def problem(self, ref: str) -> str | None:
        url = urlsplit(ref)
        if not url.hostname or url.username is not None:
            return f"must be https://HOST/FILE#sha256=HEX, got {url.scheme}://{url.hostname}/…"
        if not is_sha256(url.fragment.removeprefix("sha256=")):
            return f"must end in #sha256= and 64 hex digits, got #{url.fragment}"
        if problem := safe_name_problem(_file_name(ref)):
            return f"the file's name {problem}"
        return _odd_host(url.hostname)

    def fetch(self, ref: str, context: FetchContext) -> Path:
        name, sha256 = _file_name(ref), urlsplit(ref).fragment.removeprefix("sha256=")
        final, partial = context.folder / name, context.folder / f"{name}.part"
        if final.is_file() and sha256_of(final, context) == sha256.lower():
            return final  # an attempt that died just after its last step
        self._download(ref.partition("#")[0], partial, context)
        return accept(partial, final, sha256, context)

    def proof(self, ref: str, context: FetchContext) -> Mapping[str, FileProof]:
        del context  # the ref itself says it
        sha256 = urlsplit(ref).fragment.removeprefix("sha256=").lower()
        return {_file_name(ref): FileProof(sha256=sha256)}

    def _download(self, url: str, partial: Path, context: FetchContext) -> None:
        import httpx

        host = urlsplit(url).hostname or ""
        try:
            address = allowed_address(host, urlsplit(url).port or 443, context.networks)
            with _client(host, address, self._tls()) as client:
                _download(client, url, partial, context)
        except httpx.HTTPError as error:
            raise TransientError(f"{host}: {str(error) or type(error).__name__}") from error


def _download(client: httpx.Client, url: str, partial: Path, context: FetchContext) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == 416:
            return  # whole already, which its hash will prove
        if answer.status_code >= 500 or answer.status_code == 429:
            raise TransientError(f"{urlsplit(url).hostname} answers {answer.status_code}")
        if answer.status_code not in (200, 206):
            raise PermanentError(f"{url.partition('?')[0]} answers {answer.status_code}")
        resumed = answer.status_code == 206
        length = answer.headers.get("content-length")
        total = None if length is None else int(length) + (have if resumed else 0)
        if length is not None:
            context.reserve(int(length))
        with partial.open("ab" if resumed else "wb") as file:
            # Unbuffered: a piece that waits for its rest is lost when the connection breaks.
            append_pieces(answer.iter_raw(), file, context, total=total)


@contextmanager
def _client(host: str, address: str, tls: ssl.SSLContext) -> Iterator[httpx.Client]:
    """Yield a client that connects to the one address that was checked, and to no other."""
    import httpx

    class Pinned(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            # The certificate is still checked against the name, the connection goes to the
            # address: a name that resolves to another one a moment later gains nothing.
            request.extensions = {**request.extensions, "sni_hostname": host}
            request.url = request.url.copy_with(host=address)
            return super().handle_request(request)

    with httpx.Client(
        transport=Pinned(verify=tls),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
        headers={"Accept-Encoding": "identity"},
    ) as client:
        yield client


def allowed_address(host: str, port: int, networks: tuple[str, ...]) -> str:
    """Return one address of `host` that may be fetched from, resolved once.

    Raises PermanentError if any of its addresses is neither public nor in `networks`: then
    somebody else decides which one is used. TransientError if it cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransientError(f"{host} cannot be resolved: {error.strerror}") from error
    exempt = [ipaddress.ip_network(item) for item in networks]
    addresses = [str(item[4][0]) for item in found]
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        inner = getattr(address, "ipv4_mapped", None) or address
        public = inner.is_global and not inner.is_multicast
        if not public and not any(inner in network for network in exempt):
            raise PermanentError(
                f"{host} leads to {text}, which is no public address: allow its network by "
                "weights.networks, or use path: with a folder of the node"
            )
    return addresses[0]


def _odd_host(host: str) -> str | None:
    """Refuse spellings of an address that are read in different ways, such as 2130706433."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        if last.isdigit() or last.startswith("0x"):
            return f"{host!r} is no host name"
    return None


def _file_name(ref: str) -> str:
    return unquote(urlsplit(ref).path.rpartition("/")[2])
