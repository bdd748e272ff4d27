"""Install the OpenID Connect provider of the console's tests, oidc-provider, by npm's client into ~/.cache.

    python -m tools.provider

Every package is pinned by the hash of its content in ``tests/console/provider/package-lock.json``; no script of a package
is run. The packages are neither in the repository nor in the product.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.web import AbsentError

SOURCE = Path(__file__).resolve().parents[1] / "tests" / "console" / "provider"
FILES = ("package.json", "package-lock.json", "provider.mjs")
FETCH_S = 240
COMPLETE = ".complete"


def cache() -> Path:
    """Return the directory in which it is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calabash" / "provider"


def install(target: Path | None = None) -> Path:
    """Return the directory with ``provider.mjs`` and its packages; install them if needed. Raises AbsentError if that fails."""
    target = target or cache()
    target.mkdir(parents=True, exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = "".join((SOURCE / name).read_text() for name in FILES)
        complete = target / COMPLETE
        if complete.is_file() and complete.read_text() == wanted:
            return target
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise AbsentError("oidc-provider needs node and is fetched by npm, which are not here")
        for name in FILES:
            shutil.copy(SOURCE / name, target)
        words = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--silent"]
        try:
            subprocess.run(words, cwd=target, check=True, capture_output=True, timeout=FETCH_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise AbsentError(f"oidc-provider cannot be fetched: {error}") from None
        complete.write_text(wanted)
    return target


def main() -> int:
    try:
        install()
    except AbsentError as error:
        print(f"error: {error}\nhint: npm, node and a network are needed once", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
