"""Run the few tests that failed in ``make test-all`` once more, one after the other: ``python -m tools.repeat``.

A test that fails beside others on a busy machine and passes alone is unstable: a fault of the test, or a rare one of the
product. It does not stop a change that has nothing to do with it, but it is named, and the evidence of its failure stays in
``build/failed``. This is for accidents of timing only, so at most ``FAILED_MAX`` tests are repeated, and none where a run did
not come to its end.

Exit status: 0 if all of them pass now, else 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(".pytest_cache", "v")
GROUPS = ("quick", "complete or system")  # the runs of `make test-all`
FAILED_MAX = 5


def refusal(failed: Sequence[str], completed: Sequence[str]) -> str | None:
    """Return the reason why the tests are not repeated, or None."""
    missing = [group for group in GROUPS if group not in completed]
    if missing:
        return f"the run of the tests '{missing[0]}' did not come to its end"
    if not failed:
        return "no test is noted as failed"
    if len(failed) > FAILED_MAX:
        return f"{len(failed)} tests failed, more than {FAILED_MAX}"
    return None


def read(cache: Path) -> tuple[list[str], list[str]]:
    """Return the node IDs of the failed tests, and the marker expressions of the runs that came to their end."""
    return _read(cache / "cache" / "lastfailed"), _read(cache / "calabash" / "completed")


def _read(path: Path) -> list[str]:
    return [str(one) for one in json.loads(path.read_text())] if path.exists() else []


def main() -> int:
    """Repeat the failed tests of the runs that the cache notes."""
    failed, completed = read(CACHE)
    reason = refusal(failed, completed)
    if reason is not None:
        print(f"repeat: failed tests are not run again: {reason}", file=sys.stderr)
        return 1
    print(f"repeat: {len(failed)} failed tests are run again, alone", flush=True)
    repeated = subprocess.run([sys.executable, "-m", "pytest", "-v", *failed], check=False)
    if repeated.returncode != 0:
        return 1
    for node_id in failed:
        print(f"unstable: {node_id} failed beside other tests and passed alone; its evidence is in build/failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
