"""``calabash demo`` in processes of its own, and what it printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CALABASH = (sys.executable, "-m", "calabash.cli.main")
SHORTFALL = re.compile(r"\w+ got ([\d.]+)% of the card instead of (\d+)%")


@contextmanager
def demo(
    directory: Path, *options: str, calabash: Sequence[str] = CALABASH, path: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Start the demo as at a terminal, where Ctrl-C is sent to all processes of its group.

    Args:
        directory: directory for temporary files; its path is short, because the demo's sockets are in it.
        calabash: words that start the command; by default that of this tree.
        path: PATH of the demo; "" for that of this process.
    """
    with subprocess.Popen(
        ["/usr/bin/env", "--default-signal=INT", *calabash, "demo", "--simulated", *options],
        env=os.environ | {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"} | ({"PATH": path} if path else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of the processes that have a path of the directory in it or in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in text:
            found.append((entry / "cmdline").read_text())
    return found


def require_limits_held(process: subprocess.Popen[str]) -> None:
    """Assert that the demo found no limit exceeded.

    A share below the requested one is accepted, because programs that wait for a processor do not keep the card busy.
    ``bench/shares.py`` measures whether shares are reached, and `tests/native` tests it in virtual time.
    """
    output, _ = process.communicate(timeout=240)
    said = " ".join(output.split())
    assert "no process and no file of the demo is left" in said, output
    if process.returncode == 0:
        assert "every limit held" in said
        return
    broken = said.partition("a limit was broken: ")[2].partition(" no process and no file")[0]
    for sentence in broken.split("; "):
        found = SHORTFALL.fullmatch(sentence)
        assert found is not None, output
        assert 0 < float(found[1]) < float(found[2]), output
