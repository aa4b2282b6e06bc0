"""A model hub on loopback, as far as `huggingface_hub` asks one: point `HF_ENDPOINT` at it."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"  #: what every branch stands at
_LARGE = (".safetensors", ".gguf", ".bin")


def git_sha1(data: bytes) -> str:
    """Return the name that git has for this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def serve_hub(repositories: Mapping[str, Mapping[str, bytes] | None]) -> Iterator[str]:
    """Serve these while inside; yields the base URL.

    repositories: files by name, by ORG/NAME; None: that one is gated.
    """
    handler = type("Handler", (_Handler,), {"repositories": dict(repositories)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    repositories: ClassVar[Mapping[str, Mapping[str, bytes] | None]]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/")
        repository, _, rest = _split(path.removeprefix("api/models/"))
        if repository not in self.repositories:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (files := self.repositories[repository]) is None:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif rest.startswith("revision/"):
            siblings = [_sibling(name, data) for name, data in files.items()]
            self._json({"id": repository, "sha": COMMIT, "siblings": siblings})
        elif rest.startswith(f"tree/{COMMIT}"):
            self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": "b"}
                    for name, data in files.items()
                ]
            )
        elif (data := files.get(rest.removeprefix(f"resolve/{COMMIT}/"))) is not None:
            etag = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            self._answer(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815 -- the library's own name

    def _json(self, document: object) -> None:
        self._answer(200, json.dumps(document).encode(), {"content-type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Say nothing."""


def _split(path: str) -> tuple[str, str, str]:
    """Return ORG/NAME, a slash, and what comes behind."""
    organisation, _, behind = path.partition("/")
    name, slash, rest = behind.partition("/")
    return f"{organisation}/{name}", slash, rest


def _sibling(name: str, data: bytes) -> dict[str, object]:
    """What the hub says of a file: the large ones are kept by SHA-256, the others by git."""
    said: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
    if name.endswith(_LARGE):
        sha256 = hashlib.sha256(data).hexdigest()
        lfs = {"size": len(data), "sha256": sha256, "pointerSize": 100}
        said |= {"blobId": "of a pointer", "lfs": lfs}
    return said
