"""Fetch OpenSSL's headers and static libraries for another machine, from Debian's package; libcalabash-tls.so has them.

For this machine, the compiler finds them where ``libssl-dev`` installs them (``tools/bootstrap``).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools import debian

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def provide(machine: str, directory: Path) -> None:
    """Fill ``directory`` with ``include``, ``libssl.a`` and ``libcrypto.a`` unless they are there. Raises PackagesError."""
    if (directory / "libssl.a").exists():
        return
    packages = debian.fetch(("libssl-dev",), debian.cache(), _ARCHITECTURES[machine])
    (package,) = (one for one in packages if one.name == "libssl-dev")
    unpacked = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir(parents=True)
    done = subprocess.run(["dpkg-deb", "-x", package.file, unpacked], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise debian.PackagesError(f"dpkg-deb cannot read {package.file}: {done.stderr.strip()}")
    libraries = unpacked / "usr/lib" / f"{machine}-linux-gnu"
    directory.mkdir(parents=True, exist_ok=True)
    headers = unpacked / "usr/include"
    shutil.copytree(headers / f"{machine}-linux-gnu" / "openssl", headers / "openssl", dirs_exist_ok=True)
    shutil.copytree(headers, directory / "include", dirs_exist_ok=True)
    (libraries / "libcrypto.a").rename(directory / "libcrypto.a")
    (libraries / "libssl.a").rename(directory / "libssl.a")  # last, so that its presence means that all files are there
    shutil.rmtree(unpacked)
