"""Certificates of a lab: an authority, the southbound database, and each host, with the name of its chassis.

OVN permits a host to change only data of the chassis in its certificate.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS = 825
AUTHORITY = "authority.pem"


class LabAuthority:
    """Certificate authority of one lab; created at the first use of a directory, and read from it later."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.certificate = directory / AUTHORITY
        self._secret = directory / "authority.key"
        if not self._secret.exists() or not self.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            made = _signed(key, "calabash lab", key.public_key(), "calabash lab", authority=True)
            _write(self.certificate, made.public_bytes(serialization.Encoding.PEM), mode=0o644)
            _write(self._secret, _secret_of(key))
        loaded = serialization.load_pem_private_key(self._secret.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self._secret} holds another kind of key")
        self._key = loaded

    def issue(self, directory: Path, name: str) -> None:
        """Write ``key.pem``, ``certificate.pem`` and the authority's certificate into ``directory``, unless they exist."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (directory / AUTHORITY).exists():
            return
        key = ec.generate_private_key(ec.SECP256R1())
        made = _signed(self._key, "calabash lab", key.public_key(), name, authority=False)
        _write(directory / "key.pem", _secret_of(key))
        _write(directory / "certificate.pem", made.public_bytes(serialization.Encoding.PEM), mode=0o644)
        _write(
            directory / AUTHORITY, self.certificate.read_bytes(), mode=0o644
        )  # last: its existence shows that all files are complete


def _signed(
    signer: ec.EllipticCurvePrivateKey, issuer: str, key: ec.EllipticCurvePublicKey, name: str, *, authority: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )


def _secret_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    temporary = path.with_name(path.name + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
    temporary.replace(path)
