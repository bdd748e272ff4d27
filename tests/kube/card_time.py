"""Time during which pods keep a card busy, as the simulated driver measures it.

The driver measures processes. They are attributed to pods by their control groups.
"""

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
    """Return the UID of the pod to which a process belongs; "" if it belongs to no pod, or has ended.

    Args:
        pid: PID of the process, as the test process sees it.
    """
    try:
        found = _UID.search(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return ""
    return found[1].replace("_", "-") if found else ""


def busy_ns(state: Path, index: int) -> tuple[int, dict[str, int]]:
    """Return the current time, and the time for which each pod has kept a card busy so far, in ns.

    Args:
        state: state file of the simulated node.
        index: index of the card.

    Returns:
        Monotonic time, and the busy time by the UID of the pod.
    """
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
    """Return the percentage of a card's time that each pod used during ``seconds``, as the driver measured it.

    Args:
        state: state file of the simulated node.
        pods: UIDs of the pods.
        seconds: duration of the measurement.
        index: index of the card.
        settle_s: seconds to wait before the measurement begins.
    """
    time.sleep(settle_s)
    began, before = busy_ns(state, index)
    time.sleep(seconds)
    ended, after = busy_ns(state, index)
    return {pod: (after.get(pod, 0) - before.get(pod, 0)) / (ended - began) * 100 for pod in pods}


def use_their_shares(state: Path, asked: Mapping[str, int], seconds: float = 2.0) -> bool:
    """Return True if each pod uses most of its share of a card.

    A pod may use less on a busy machine, because its program waits for a processor. Tests then measure again.

    Args:
        state: state file of the simulated node.
        asked: requested percentage of the card, by the pod's UID.
        seconds: duration of the measurement.

    Raises:
        AssertionError: a pod has more than its share.
    """
    got = shares(state, asked, seconds, settle_s=0.0)
    assert all(got[uid] <= percent + POINTS for uid, percent in asked.items()), got
    return all(got[uid] >= MOST * percent for uid, percent in asked.items())
