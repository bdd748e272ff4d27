"""Clients of a server that are known by their certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrustedClients:
    """Clients whose certificate one of these authorities signed.

    Args:
        authority: certificates of authorities, PEM.
        names: the common names that are accepted; none: any.
    """

    authority: str
    names: tuple[str, ...] = ()

    def trust(self, context: ssl.SSLContext) -> None:
        """Let no other client end its handshake. Raises ValueError (ssl.SSLError)."""
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority)

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return True if a certificate that the authority signed has an accepted name."""
        if not self.names:
            return certificate is not None
        subject = (certificate or {}).get("subject", ())
        return any(key == "commonName" and value in self.names for part in subject for key, value in part)
