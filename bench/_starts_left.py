"""Leftovers after the last pod of a benchmark of starts: directories, mounts, accounts of the driver, report of the node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kube.api import Json
from tests.native.simnode import simctl

from calabash.kubernetes.node_plugin.containers.device_ids import SPEC_PREFIX

LEFT_S = 90.0  # a leftover this long after the last pod is a leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Leftovers after the last pod."""

    specs: int
    slots: int
    used_bytes: int
    slices: int

    def any(self) -> bool:
        return bool(self.specs or self.slots or self.used_bytes or self.slices)


def wait_until_nothing_is_left(count_left: Callable[[], Left]) -> tuple[Left, float]:
    """Wait until nothing is left; return the leftovers and the seconds that it took."""
    began = time.monotonic()
    while (left := count_left()).any() and time.monotonic() - began < LEFT_S:
        time.sleep(0.5)
    return left, time.monotonic() - began


def specs_in(directory: Path, prefix: str = SPEC_PREFIX) -> int:
    return sum(path.name.startswith(prefix) for path in directory.iterdir())


def cards(state: Path) -> list[Json]:
    """Return the devices of the simulated node with their accounts."""
    shown = simctl("show", state, "--json")
    assert shown.returncode == 0, shown.stderr
    devices: list[Json] = json.loads(shown.stdout)["devices"]
    return devices


def used_bytes(state: Path) -> int:
    return sum(int(card["used_bytes"]) for card in cards(state))
