"""Which certificate authorities somebody believes, in a form that is cheap to compare."""

from __future__ import annotations

import hashlib

from cryptography import x509

from llmgw.contracts.joinproof import key_pin, token_id_of

_DIGITS = 16


def authorities_digest(bundle: bytes) -> str:
    """Return 16 hex digits for the authorities in a PEM bundle; "" for none.

    Their order counts: the first one issues, and a node needs a certificate by the new one before
    the old one is dropped. Those of join tokens do not count: they come and go, and sign no node.
    """
    if not bundle:
        return ""
    certificates = x509.load_pem_x509_certificates(bundle)
    pins = dict.fromkeys(key_pin(item) for item in certificates if token_id_of(item) is None)
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()[:_DIGITS] if pins else ""
