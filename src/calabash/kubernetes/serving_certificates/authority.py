"""Create and check X.509 certificates: a private authority, and server certificates that it signs.

Keys are on the elliptic curve P-256. The current time is an argument of each function. A certificate must be replaced
when a third of its validity is left.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SKEW = datetime.timedelta(minutes=10)  # clock differences
AUTHORITY_NAME = "calabash admission authority"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def make_authority(now: datetime.datetime, days: int) -> KeyPair:
    """Create a self-signed authority that can sign server certificates only."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY_NAME)])
    builder = _builder(name, name, key, now, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_serving(authority: KeyPair, names: Sequence[str], now: datetime.datetime, days: int) -> KeyPair:
    """Create a server certificate, signed by the authority.

    Args:
        authority: the authority with its key.
        names: DNS names and IP addresses of the server.
        now: current time.
        days: validity in days.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    builder = _builder(subject, issuer.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return _pair(builder.add_extension(identifier, critical=False).sign(signer, hashes.SHA256()), key)


def due(certificate: bytes, now: datetime.datetime) -> bool:
    """Return True if the certificate must be replaced: a third of its validity is left, or it is not valid yet."""
    found = x509.load_pem_x509_certificate(certificate)
    begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
    return now < begins or now > ends - (ends - begins) / 3


def signed_by(certificate: bytes, authority: bytes) -> bool:
    """Return True if the authority signed the certificate."""
    try:
        issuer = x509.load_pem_x509_certificate(authority)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def serves(certificate: bytes, names: Sequence[str]) -> bool:
    """Return True if the certificate is valid for all these DNS names and IP addresses."""
    found = x509.load_pem_x509_certificate(certificate)
    try:
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return set(alternatives) >= {_general(name) for name in names}


def belongs(pair: KeyPair) -> bool:
    """Return True if the key belongs to the certificate; False if either cannot be read."""
    try:
        key = serialization.load_pem_private_key(pair.key, None)
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except (ValueError, TypeError):
        return False
    return bool(key.public_key() == certificate.public_key())


def split(bundle: bytes) -> list[bytes]:
    """Return the certificates of a PEM bundle one by one. Raises ValueError if the bundle cannot be read."""
    if not bundle.strip():
        return []
    return [_pem(certificate) for certificate in x509.load_pem_x509_certificates(bundle)]


def valid(certificate: bytes, now: datetime.datetime) -> bool:
    """Return True if the certificate has not expired."""
    return bool(now < x509.load_pem_x509_certificate(certificate).not_valid_after_utc)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate=_pem(certificate), key=private)


def _pem(certificate: x509.Certificate) -> bytes:
    text: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return text


def ends_at_s(certificate: bytes) -> float:
    """Return the time at which a certificate expires, in seconds since the epoch."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
