"""Signing keys, signatures and the server's self-signed certificate.

Only this module of the broker imports the package ``cryptography``, so that clients do not need it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

_DAYS = 3650  # clients pin the fingerprint, so expiry would only break them
_SKEW = datetime.timedelta(days=1)  # clocks differ


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCertificate:
    """Self-signed certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


def new_signing_key() -> bytes:
    """Return a new Ed25519 private key of 32 bytes."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_of(secret: bytes) -> bytes:
    """Return the 32-byte Ed25519 public key of a private key."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, message: bytes) -> bytes:
    """Return the Ed25519 signature of a message, 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(message)


def verify_signature(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return True if the signature is valid for the message and the public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def make_certificate(name: str, now: datetime.datetime) -> OwnCertificate:
    """Return a new self-signed certificate for a server.

    No authority vouches for it: clients know its fingerprint from the token file and accept no other certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64] or "calabash")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return OwnCertificate(certificate=certificate, key=private)
