"""Read uploaded certificates and keys, and check that they belong together."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.errors import CalabashError

CHAIN_MAX = 8
RSA_BITS_MIN = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """Facts of a certificate that are shown to users.

    Args:
        subject: distinguished name of the subject.
        names: host names and IP addresses for which the certificate is valid.
        expires_at: time of its expiry, in seconds since the epoch.
        sha256: fingerprint: SHA-256 of the certificate in DER, in hexadecimal.
    """

    subject: str
    names: tuple[str, ...]
    expires_at: float
    sha256: str


def read_chain(chain: str) -> CertificateFacts:
    """Return the facts of the first certificate of a chain in PEM. Raises CalabashError(BAD_REQUEST)."""
    from cryptography import x509  # noqa: PLC0415 - it takes long to load, and a pool may never need it
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

    try:
        found = x509.load_pem_x509_certificates(chain.encode())
        first = found[0]
        try:
            named = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = (*named.get_values_for_type(x509.DNSName), *map(str, named.get_values_for_type(x509.IPAddress)))
        except x509.ExtensionNotFound:
            names = ()
        subject = first.subject.rfc4514_string()
    except (ValueError, IndexError) as error:
        raise CalabashError(
            "the certificate is not PEM of X.509", hint="-----BEGIN CERTIFICATE----- and so on"
        ) from error
    if len(found) > CHAIN_MAX:
        raise CalabashError(f"the chain has {len(found)} certificates", hint=f"at most {CHAIN_MAX}")
    return CertificateFacts(
        subject=subject[:256],
        names=names[:64],
        expires_at=first.not_valid_after_utc.timestamp(),
        sha256=first.fingerprint(hashes.SHA256()).hex(),
    )


def check_pair(chain: str, key: str, *, now_s: float) -> CertificateFacts:
    """Check that a private key belongs to the first certificate of a chain; return the facts of the certificate.

    Raises CalabashError(BAD_REQUEST) if it does not, if the certificate has expired, or if an RSA key is too short. The message
    has no part of the key.
    """
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    facts = read_chain(chain)
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        secret = serialization.load_pem_private_key(key.encode(), password=None)
        own = secret.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CalabashError("the key is not PEM of a private key", hint="one without a password") from None
    if x509.load_pem_x509_certificates(chain.encode())[0].public_key().public_bytes(*form) != own.public_bytes(*form):
        raise CalabashError("the key is not that of the first certificate", hint="give the pair that belongs together")
    if isinstance(own, rsa.RSAPublicKey) and own.key_size < RSA_BITS_MIN:
        raise CalabashError(f"the key has {own.key_size} bits", hint=f"RSA has {RSA_BITS_MIN} at least")
    if facts.expires_at <= now_s:
        raise CalabashError("the certificate has expired", hint="give one that has not")
    return facts
