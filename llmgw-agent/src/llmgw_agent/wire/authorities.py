"""Which certificate authorities somebody believes, in a form that is cheap to compare."""

from __future__ import annotations

import hashlib

from cryptography import x509

from llmgw.contracts.join import key_pin, token_id_of

_DIGITS = 16


def authorities_digest(bundle: bytes) -> str:
    """Return 16 hex digits for the set of authorities in a PEM bundle; "" for none.

    The authorities of join tokens do not count: they come and go, and sign no node.
    """
    if not bundle:
        return ""
    certificates = x509.load_pem_x509_certificates(bundle)
    pins = sorted({key_pin(item) for item in certificates if token_id_of(item) is None})
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()[:_DIGITS] if pins else ""
