"""Flags of an API server for aggregated API servers: the front-proxy certificate, as every installed cluster has it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def front_proxy(directory: Path) -> list[str]:
    """Return flags of an API server, with a certificate in ``directory`` by which aggregated servers authenticate it."""
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
