"""Cleanup process of the demo, ``python -I -m calabash.cli.demo.cleanup DIRECTORY``: makes and removes the demo's home.

It makes a temporary home for a pool in the directory, prints the path, and waits for the end of its standard input: a pipe
whose other end is open in the demo and in the commands with which the demo changes the pool. The end of the input therefore
means that the demo has ended, also by SIGKILL, and that no command is starting or changing the pool any more. Then it ends
the pool with all programs, and removes the home.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from calabash.adapters.host.children import start_module

SOCKET = "pool.sock"


def main() -> int:
    """Make the home, wait for the end of the demo, and remove the home; return the exit status."""
    try:
        home = Path(tempfile.mkdtemp(prefix="calabash-demo-", dir=sys.argv[1]))
    except OSError as error:
        sys.stdout.write(f"{sys.argv[1]}: {error.strerror}")
        return 1
    try:
        print(home, flush=True)
    except BrokenPipeError:  # the demo has ended already
        sys.stdout = None
    sys.stdin.buffer.read()
    failure = end_pool(home)
    if failure:
        sys.stderr.write(f"{failure}\nhint: end the pool with CALABASH_HOME={home} calabash down --force\n")
        return 1
    shutil.rmtree(home)
    return 0


def end_pool(home: Path) -> str:
    """End the pool of a home and its programs, if one runs there. Return the output of a failed command, else ""."""
    if not (home / SOCKET).exists():
        return ""
    with start_module(
        "calabash.cli.main",
        *("down", "--force"),
        environment={"CALABASH_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        output, _ = process.communicate()
    return output.decode(errors="replace").strip() if process.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
