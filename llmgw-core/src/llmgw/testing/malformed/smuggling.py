"""Requests that hide a second one where a lenient parser would find it."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.testing.malformed.draft import Draft

HIDDEN = "hidden-"
"""Prefix of `user` in requests that nobody may ever answer."""


def _hidden_request(draft: Draft) -> bytes:
    authorization = next(value for name, value in draft.headers if name == b"Authorization")
    body = b'{"model": "demo", "messages": [], "user": "%b%d"}' % (HIDDEN.encode(), draft.number)
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (authorization, len(body), body)
    )


def both_framings(draft: Draft) -> None:
    draft.body, draft.is_chunked = b"0\r\n\r\n" + _hidden_request(draft), False
    draft.replace(b"Content-Length", b"%d" % len(draft.body))
    coding = draft.random.choice(
        (b"chunked", b"Chunked", b"chunked, chunked", b"identity, chunked", b"gzip, chunked")
    )
    draft.replace(b"Transfer-Encoding", coding)
    draft.random.shuffle(draft.headers)


def a_coding_that_looks_chunked(draft: Draft) -> None:
    draft.body, draft.is_chunked = b"0\r\n\r\n" + _hidden_request(draft), False
    draft.replace(b"Content-Length", b"%d" % len(draft.body))
    name, value = draft.random.choice(
        (
            (b"Transfer-Encoding ", b"chunked"),
            (b"Transfer-Encoding", b"xchunked"),
            (b"Transfer-Encoding", b"\x0bchunked"),
            (b"Transfer-Encoding", b'"chunked"'),
            (b"Transfer-Encoding\x00", b"chunked"),
            (b"X\nTransfer-Encoding", b"chunked"),
            (b"Transfer-Encoding", b"\r\n chunked"),
            (b"Transfer_Encoding\t", b"chunked"),
            (b"Transfer-Encoding", b"chunked, identity"),
        )
    )
    draft.headers.append((name, value))


def two_lengths(draft: Draft) -> None:
    shown = draft.body
    draft.body, draft.is_chunked = shown + _hidden_request(draft), False
    draft.replace(b"Transfer-Encoding")
    lengths = [b"%d" % len(draft.body), b"%d" % len(shown)]
    draft.random.shuffle(lengths)
    joined = draft.random.choice((True, False))
    draft.replace(b"Content-Length", *([b", ".join(lengths)] if joined else lengths))


def a_length_read_in_another_way(draft: Draft) -> None:
    shown = draft.body
    draft.body, draft.is_chunked = shown + _hidden_request(draft), False
    draft.replace(b"Transfer-Encoding")
    form = draft.random.choice(
        (b"+%d", b"%d_0", b"%d;", b"0x%x", b"%d,", b"%d.0", b"-%d", b"%d\x00", b"1%020d", b"%d e")
    )
    draft.replace(b"Content-Length", form % len(shown))


def a_chunk_size_read_in_another_way(draft: Draft) -> None:
    hidden = _hidden_request(draft)
    size = draft.random.choice(
        (
            b"0x%x" % len(hidden),
            b"+%x" % len(hidden),
            b"-%x" % len(hidden),
            b"1%016x" % len(hidden),
            b"%x\n" % len(hidden),
            b" %x" % len(hidden),
            b"%x;a\nb" % len(hidden),
            b"%x \x00" % len(hidden),
            b"%x_" % len(hidden),
        )
    )
    draft.replace(b"Content-Length")
    draft.replace(b"Transfer-Encoding", b"chunked")
    draft.body, draft.is_chunked = size + b"\r\n" + hidden + b"\r\n0\r\n\r\n", False


def a_chunk_longer_than_it_says(draft: Draft) -> None:
    draft.replace(b"Content-Length")
    draft.replace(b"Transfer-Encoding", b"chunked")
    end = draft.random.choice((b"", b"\n", b"\r", b"xx", b"\x00\x00"))
    short = draft.body[:-4] or b"x"
    draft.body = b"%x\r\n%b" % (len(short), short) + end + _hidden_request(draft)
    draft.is_chunked = False


def a_header_with_another_request_in_it(draft: Draft) -> None:
    end = draft.random.choice((b"\n\n", b"\r\r", b"\x00\r\n", b"\n\r\n", b"\r \r\n"))
    draft.headers.insert(1, (b"X-Note", b"1" + end + _hidden_request(draft)))


def a_body_where_none_belongs(draft: Draft) -> None:
    """A GET or HEAD that carries a request as its body, by a length."""
    draft.method = draft.random.choice((b"GET", b"HEAD", b"OPTIONS", b"DELETE"))
    draft.target = draft.random.choice((b"/v1/models", b"/healthz", b"/nowhere"))
    draft.body, draft.is_chunked = _hidden_request(draft), False
    draft.replace(b"Transfer-Encoding")
    draft.replace(b"Content-Length", b"%d" % len(draft.body))
    draft.meant = 0


def hidden_trailers(draft: Draft) -> None:
    draft.replace(b"Content-Length")
    draft.replace(b"Transfer-Encoding", b"chunked")
    trailers = b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\nHost: other\r\nX: 1\n\n"
    draft.body = b"%x\r\n%b\r\n0\r\n%b" % (len(draft.body), draft.body, trailers) + _hidden_request(
        draft
    )
    draft.is_chunked = False


SMUGGLING: tuple[Callable[[Draft], None], ...] = (
    both_framings,
    a_coding_that_looks_chunked,
    two_lengths,
    a_length_read_in_another_way,
    a_chunk_size_read_in_another_way,
    a_chunk_longer_than_it_says,
    a_header_with_another_request_in_it,
    a_body_where_none_belongs,
    hidden_trailers,
)
