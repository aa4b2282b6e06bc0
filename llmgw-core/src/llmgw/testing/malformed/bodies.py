"""Lengths, chunks, bodies and whole connections as they should not be."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.testing.malformed.draft import Draft


def a_wrong_length(draft: Draft) -> None:
    size = len(draft.body)
    draft.is_chunked = False
    draft.replace(b"Transfer-Encoding")
    length = draft.random.choice(
        (size + 1, size + 100, max(0, size - 1), 0, 2**31, 2**63, 2**64, 10**30)
    )
    draft.replace(b"Content-Length", b"%d" % length)


def no_length(draft: Draft) -> None:
    draft.replace(b"Content-Length")
    draft.replace(b"Transfer-Encoding")
    draft.is_chunked = False


def odd_chunks(draft: Draft) -> None:
    draft.replace(b"Content-Length")
    draft.replace(b"Transfer-Encoding", b"chunked")
    body, size = draft.body, len(draft.body)
    draft.is_chunked = False
    draft.body = draft.random.choice(
        (
            b"%X\r\n%b\r\n0\r\n\r\n" % (size, body),
            b"%020x\r\n%b\r\n0\r\n\r\n" % (size, body),
            b"%x;name=value\r\n%b\r\n0\r\n\r\n" % (size, body),
            b"%x;%b\r\n%b\r\n0\r\n\r\n" % (size, b"e" * 100_000, body),
            b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (size, body),
            b"%x\r\n%b\r\n0\r\n%b\r\n" % (size, body, b"X-T: 1\r\n" * 2_000),
            b"%x\r\n%b\r\n" % (size, body),
            b"%x\r\n%b0\r\n\r\n" % (size, body),
            b"zz\r\n",
            b"ffffffffffffffff\r\n%b" % body,
            b"\r\n",
            b"".join(b"1\r\n%c\r\n" % byte for byte in body[:5_000]) + b"0\r\n\r\n",
        )
    )


def _rebodied(draft: Draft, body: bytes) -> None:
    draft.body = body
    if not draft.is_chunked:
        draft.replace(b"Content-Length", b"%d" % len(body))


def another_body(draft: Draft) -> None:
    body = draft.body
    deep = draft.random.choice((65, 1_000, 100_000))
    _rebodied(
        draft,
        draft.random.choice(
            (
                b"",
                b"null",
                b"[]",
                b"{}",
                b"[" * deep,
                b'{"model": "demo", "x": ' + b'{"a":' * deep + b"1" + b"}" * deep + b"}",
                b'{"model": "demo", "model": "other"}',
                b'{"model": "demo", "mod\\u0065l": "other"}',
                b'{"model": "demo", "stream": true, "stream": false}',
                b'{"model": 5}',
                b'{"model": null, "messages": []}',
                b'{"model": "demo", "messages": ["\\ud83d"]}',
                b'{"model": "demo", "messages": ["\xff\xfe"]}',
                b'{"model": "demo", "n": 1e999999, "m": -0, "k": ' + b"9" * 5_000 + b"}",
                b'{"model": "demo", "x": NaN}',
                b'{"model": "demo"} trailing',
                b'{"model": "demo", "stream_options": [1]}',
                b'{"model": "demo", "messages": [], "stream": "true"}',
                b'{"model": "' + b"d" * 50_000 + b'"}',
                b'{"model": "../../etc/passwd"}',
                b'{"\x00": "\x01", "model": "demo"}',
                b"\xef\xbb\xbf" + body,
                body.decode("utf-8", "replace").encode("utf-16"),
                body[: len(body) // 2],
                body + body,
                body.replace(b'"', b"'"),
            )
        ),
    )


def flipped_bytes(draft: Draft) -> None:
    data = bytearray(draft.wire())
    for _ in range(draft.random.choice((1, 3, 20))):
        # Not in the method: what comes back could then not be told from an answer to HEAD.
        data[draft.random.randrange(min(5, len(data) - 1), len(data))] = draft.random.randrange(256)
    draft.raw = bytes(data)


def missing_bytes(draft: Draft) -> None:
    data = draft.wire()
    start = draft.random.randrange(min(5, len(data) - 1), len(data))
    draft.raw = data[:start] + data[start + draft.random.choice((1, 10, 1_000)) :]


def no_http(draft: Draft) -> None:
    draft.raw = draft.random.choice(
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
            b"SSH-2.0-x\r\n",
            b"\r\n" * 1_000,
            b"\x00" * 1_000,
            draft.random.randbytes(2_000),
            b"GET /\r\n",
            b"G",
        )
    )


def pipelined(draft: Draft) -> None:
    """One or more sound requests behind it."""
    more = draft.random.choice((1, 3, 50))
    body = b'{"model": "demo", "messages": [], "user": "u-%d"}' % draft.number
    key = next((value for name, value in draft.headers if name == b"Authorization"), b"")
    one = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (key, len(body), body)
    )
    draft.behind += one * more
    draft.meant += more


def rubbish_behind(draft: Draft) -> None:
    draft.behind += draft.random.choice((b"\x00", b"NONSENSE\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n"))


BODIES: tuple[Callable[[Draft], None], ...] = (
    a_wrong_length,
    no_length,
    odd_chunks,
    another_body,
    flipped_bytes,
    missing_bytes,
    no_http,
    pipelined,
    rubbish_behind,
)
"""Changes of the body, of its framing, and of what follows it."""
