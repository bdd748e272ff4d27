"""Compute certificate fingerprints with the standard library only, so that clients need no cryptography package."""

from __future__ import annotations

import hashlib
import ssl


def fingerprint(certificate: bytes) -> str:
    """Return the fingerprint of a PEM certificate: ``sha256:`` and 64 hexadecimal digits."""
    return fingerprint_of_der(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii")))


def fingerprint_of_der(certificate: bytes) -> str:
    """Return the fingerprint of a DER certificate, the form in which TLS presents it."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"
