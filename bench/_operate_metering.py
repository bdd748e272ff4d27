"""Metered usage of a day of churn in virtual time, compared with the events: programs killed, pools killed at any step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

from tests.unit.node.metering.metered_day import DAY_S, played

from bench._report import Report


def measure_metering(report: Report) -> None:
    """Measure a day with 200 kills and 20 restarts; with ``--quick`` a quarter of it."""
    part = 4 if report.quick else 1
    # Time is virtual: nothing here waits for the disk, and no power is cut.
    with tempfile.TemporaryDirectory() as home, mock.patch.object(os, "fsync", return_value=None):
        day = played(Path(home), seed=1, kills=210 // part, restarts=24 // part, day_s=DAY_S / part)
    report.add("programs killed", day.kills, "")
    report.add("pools killed and started again", day.restarts, "")
    report.add("held time metered wrongly", 100 * day.error_ratio, "%", at_most=0.1)
    report.add("GPU time metered wrongly", 100 * day.used_error_ratio, "%", at_most=0.1)
    report.add("intervals lost or doubled", day.broken(), "", at_most=0)
