"""Request lines and headers as they should not be."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.testing.malformed.draft import Draft


def another_method(draft: Draft) -> None:
    draft.method = draft.random.choice(
        (
            *(b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"TRACE", b"CONNECT", b"OPTIONS"),
            *(b"post", b"FOO", b"P" * 5000, b"", b"POST POST", b"PRI", b"M-SEARCH", b"\xff"),
        )
    )


def another_target(draft: Draft) -> None:
    target = draft.target
    draft.target = draft.random.choice(
        (
            b"*",
            b"",
            b"127.0.0.1:80",
            b"/admin/v1/status",
            b"/metrics",
            b"http://127.0.0.1" + target,
            b"http://" + target,
            b"//evil.example" + target,
            b"/v1/../flush_cache",
            b"/v1/%2e%2e/flush_cache",
            target + b"/",
            target + b"?model=other",
            target + b"#part",
            target + b"%00",
            target + b"\xc3\xa9",
            target + b" x",
            b"/" + target,
            target.upper(),
            b"/v1/models/%ff%fe",
            b"/v1/models/" + b"a" * 70_000,
            b"\\v1\\models",
        )
    )


def another_version(draft: Draft) -> None:
    draft.version = draft.random.choice(
        (
            b"HTTP/1.0",
            b"HTTP/0.9",
            b"HTTP/2.0",
            b"HTTP/1.9",
            b"HTTP/11",
            b"http/1.1",
            b"",
            b"ICE/1.0",
            b"HTTP/1.1 x",
            b"HTTP/\x00.1",
            b"HTTP/1.1" + b"1" * 5000,
        )
    )


def another_host(draft: Draft) -> None:
    value = draft.random.choice(
        ((), (b"",), (b"a", b"b"), (b"a b",), (b"a/b",), (b"[::1",), (b"u@h",), (b"h:99999",))
    )
    draft.replace(b"Host", *value)


def a_header_out_of_shape(draft: Draft) -> None:
    shape = draft.random.choice(
        (
            (b"", b"empty"),
            (b"Bad Name", b"1"),
            (b"X-Space ", b"1"),
            (b"X-Folded", b"1\r\n 2"),
            (b"X-Nul", b"a\x00b"),
            (b"X-Return", b"a\rb"),
            (b"X-Feed", b"a\nb"),
            (b"X-High", b"\xff\xfe"),
            (b"X-\xc3\xa9", b"1"),
            (b"X-Bell", b"\x07"),
            (b"X-Long", b"a" * draft.random.choice((8_000, 70_000, 300_000))),
            (b"a" * 70_000, b"1"),
            (b":", b":"),
        )
    )
    draft.headers.insert(draft.random.randrange(len(draft.headers) + 1), shape)


def too_many_headers(draft: Draft) -> None:
    count = draft.random.choice((90, 101, 150, 5_000))
    draft.headers += [(b"X-%d" % index, b"1") for index in range(count)]


def other_line_ends(draft: Draft) -> None:
    draft.line_end = draft.random.choice((b"\n", b"\r", b"\n\r", b"\r\r\n", b"\x0b"))


def another_connection(draft: Draft) -> None:
    value = draft.random.choice(
        (b"close", b"keep-alive", b"close, keep-alive", b"host, authorization", b",,,", b"Upgrade")
    )
    draft.replace(b"Connection", value)
    if value == b"Upgrade":
        draft.replace(b"Upgrade", draft.random.choice((b"websocket", b"h2c", b"\x00")))


def another_expectation(draft: Draft) -> None:
    draft.replace(
        b"Expect", draft.random.choice((b"100-continue", b"200-ok", b"", b"100-Continue"))
    )


def another_key(draft: Draft) -> None:
    value = draft.random.choice(
        (
            (),
            (b"Bearer",),
            (b"bearer  x",),
            (b"Bearer cl\xc3\xa9",),
            (b"Bearer " + b"x" * 60_000,),
            (b"Basic dTpw",),
            (b"Bearer a", b"Bearer b"),
            (b"\xef\xbb\xbfBearer x",),
        )
    )
    draft.replace(b"Authorization", *value)
    draft.meant = 0


def another_content_type(draft: Draft) -> None:
    value = draft.random.choice(
        (
            b"",
            b"text/plain",
            b"application/json; charset=utf-16",
            b"multipart/form-data",
            b"multipart/form-data; boundary=",
            b'multipart/form-data; boundary="' + b"x" * 5_000 + b'"',
            b"\x00",
        )
    )
    draft.replace(b"Content-Type", value)


def a_content_coding(draft: Draft) -> None:
    coding = draft.random.choice(
        (b"gzip", b"zstd", b"br", b"x-unknown", b"gzip, gzip", b"", b"identity")
    )
    draft.replace(b"Content-Encoding", coding)


HEADS: tuple[Callable[[Draft], None], ...] = (
    another_method,
    another_target,
    another_version,
    another_host,
    a_header_out_of_shape,
    too_many_headers,
    other_line_ends,
    another_connection,
    another_expectation,
    another_key,
    another_content_type,
    a_content_coding,
)
"""Changes of what stands before the body."""
