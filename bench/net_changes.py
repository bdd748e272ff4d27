"""10,000 random changes of tenants' networks while the controller is killed again and again, checked in OVN's databases.

After each crash the rows of every VPC must be those of one revision of the store, not older than the revision that its router
records; in the end they match the store, and there are no others. Fails otherwise, and prints how much was tried.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.net.random_changes import Endurance

from bench._report import Report, run

CHANGES, QUICK_CHANGES = 10_000, 300
CHANGES_PER_CRASH = 50
SEED = 11


def measure(report: Report) -> None:
    """Measure all; the short form makes a few hundred changes."""
    changes = QUICK_CHANGES if report.quick else CHANGES
    report.fact("seed", str(SEED))
    with tempfile.TemporaryDirectory(prefix="cbr") as directory:  # sockets have short paths
        begun = time.monotonic()
        endurance = Endurance(Path(directory), SEED)
        endured = endurance.run(changes=changes, crashes=changes // CHANGES_PER_CRASH)
    report.add("random changes tried", endured.taken + endured.refused, "changes", at_least=changes)
    report.add("of these refused, with a reason", endured.refused, "changes")
    report.add("crashes of the controller", endured.crashes, "crashes", at_least=changes // CHANGES_PER_CRASH)
    report.add("of these with rows still to write", endured.interrupted, "crashes", at_least=1)
    report.add("owners of rows left wrong or over", endured.left, "owners", at_most=0)
    report.add("all of it", time.monotonic() - begun, "s")


if __name__ == "__main__":
    run("net_changes", "Random changes of tenants' networks", measure)
