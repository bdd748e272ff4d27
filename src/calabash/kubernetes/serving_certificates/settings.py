"""Settings of the certificates of a server that API servers call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """Names of the objects that hold the certificates, and their validity.

    Args:
        namespace: namespace of the service and of the Secret.
        service: name of the service.
        secret: name of the Secret with the certificates.
        configuration: name of both webhook configurations; "" for a server without webhooks.
        serving_days, authority_days: validity, in days, of the server certificate and of its authority. Each is
            replaced when a third of its validity is left.
    """

    namespace: str = "calabash-system"
    service: str = "calabash-admission"
    secret: str = "calabash-admission-tls"  # noqa: S105 - a name
    configuration: str = "calabash-admission"
    serving_days: int = 90
    authority_days: int = 1825
