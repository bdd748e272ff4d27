"""What the driver's books say of pods: their processes are found by their control groups, from outside."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.native.simnode import simctl

POINTS = 5.0  # the books are read by a program, which a busy machine starts late
MOST = 0.75
_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def pod_of(pid: int) -> str:
    """The uid of the pod that a process (by its number here) is in; empty: none, or it has ended."""
    try:
        found = _UID.search(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return ""
    return found[1].replace("_", "-") if found else ""


def busy_ns(state: Path, index: int) -> tuple[int, dict[str, int]]:
    """Now, and the time of a card that each pod's processes have had."""
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
    """Percent of a card's time that each pod has had over ``seconds``, by the driver's books."""
    time.sleep(settle_s)
    began, before = busy_ns(state, index)
    time.sleep(seconds)
    ended, after = busy_ns(state, index)
    return {pod: (after.get(pod, 0) - before.get(pod, 0)) / (ended - began) * 100 for pod in pods}


def use_their_shares(state: Path, asked: Mapping[str, int], seconds: float = 2.0) -> bool:
    """Return True if each pod uses most of its share of a card, which it does not while it waits for a processor.

    Args:
        state: of the simulated node.
        asked: percent of the card by the uid of the pod.
        seconds: for which the use is measured.

    Raises:
        AssertionError: a pod has more than its share.
    """
    got = shares(state, asked, seconds, settle_s=0.0)
    assert all(got[uid] <= percent + POINTS for uid, percent in asked.items()), got
    return all(got[uid] >= MOST * percent for uid, percent in asked.items())
