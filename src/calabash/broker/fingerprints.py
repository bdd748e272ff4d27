"""By what a server's certificate is known, without a library of keys: clients need no more."""

from __future__ import annotations

import hashlib
import ssl


def fingerprint(certificate: bytes) -> str:
    """``sha256:`` and 64 digits of a PEM certificate."""
    return fingerprint_of_der(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii")))


def fingerprint_of_der(certificate: bytes) -> str:
    """As :func:`fingerprint`, of what a TLS connection shows."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"
