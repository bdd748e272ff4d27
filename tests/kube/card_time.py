"""Card time of pods as the simulated driver measures it; processes are mapped to pods by their control groups."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.native.simnode import simctl

POINTS = 5.0  # a program reads the driver's records, and a busy machine starts it late
MOST = 0.75
_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def pod_of(pid: int) -> str:
    """Return the UID of the pod of a process (by its PID here); "" if there is none, or the process has ended."""
    try:
        found = _UID.search(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return ""
    return found[1].replace("_", "-") if found else ""


def busy_ns(state: Path, index: int) -> tuple[int, dict[str, int]]:
    """Return the current time, and the card time of each pod's processes, in ns."""
    before = time.monotonic_ns()
    shown = simctl("show", state, "--json")
    now = (before + time.monotonic_ns()) // 2
    assert shown.returncode == 0, shown.stderr
    processes: list[dict[str, Any]] = json.loads(shown.stdout)["processes"]
    had: dict[str, int] = {}
    for process in processes:
        pod = pod_of(process["pid"])
        for device in process["devices"]:
            if pod and device["index"] == index:
                had[pod] = had.get(pod, 0) + int(device["busy_ns"])
    return now, had


def shares(
    state: Path, pods: Iterable[str], seconds: float, *, index: int = 0, settle_s: float = 1.5
) -> dict[str, float]:
    """Return the percentage of a card's time that each pod used during ``seconds``, as the driver measured it."""
    time.sleep(settle_s)
    began, before = busy_ns(state, index)
    time.sleep(seconds)
    ended, after = busy_ns(state, index)
    return {pod: (after.get(pod, 0) - before.get(pod, 0)) / (ended - began) * 100 for pod in pods}


def use_their_shares(state: Path, asked: Mapping[str, int], seconds: float = 2.0) -> bool:
    """Return True if each pod uses most of its share of a card; a pod that waits for a processor does not.

    Args:
        state: of the simulated node.
        asked: requested percentage of the card, by the pod's UID.
        seconds: duration of the measurement.

    Raises:
        AssertionError: a pod has more than its share.
    """
    got = shares(state, asked, seconds, settle_s=0.0)
    assert all(got[uid] <= percent + POINTS for uid, percent in asked.items()), got
    return all(got[uid] >= MOST * percent for uid, percent in asked.items())
