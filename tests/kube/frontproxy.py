"""Flags that let an API server forward requests to aggregated API servers, as in every installed cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path


def front_proxy(directory: Path) -> list[str]:
    """Create a client certificate in ``directory``, and return the API server's flags that name it.

    Aggregated API servers authenticate the API server by this certificate.
    """
    certificate, key = directory / "proxy.crt", directory / "proxy.key"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-subj", "/CN=front-proxy-client", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *files], check=True, capture_output=True, timeout=60)
    flags = {
        "requestheader-client-ca-file": certificate,
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": certificate,
        "proxy-client-key-file": key,
    }
    return [f"--{name}={value}" for name, value in flags.items()]
