"""What is there after the last pod of a benchmark of starts, by directories, mounts, the driver's books and the node's word."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kube.api import Json
from tests.native.simnode import simctl

from calabash.kubernetes.node.tokens import SPEC_PREFIX

LEFT_S = 90.0  # what is still there so long after the last pod is a leak


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is there after the last pod."""

    specs: int
    slots: int
    used_bytes: int
    slices: int

    def any(self) -> bool:
        return bool(self.specs or self.slots or self.used_bytes or self.slices)


def wait_for_nothing(look: Callable[[], Left]) -> tuple[Left, float]:
    """What is left after a while, and how long it took until nothing was."""
    began = time.monotonic()
    while (left := look()).any() and time.monotonic() - began < LEFT_S:
        time.sleep(0.5)
    return left, time.monotonic() - began


def specs_in(directory: Path, prefix: str = SPEC_PREFIX) -> int:
    return sum(path.name.startswith(prefix) for path in directory.iterdir())


def cards(state: Path) -> list[Json]:
    """The books of the simulated cards."""
    shown = simctl("show", state, "--json")
    assert shown.returncode == 0, shown.stderr
    devices: list[Json] = json.loads(shown.stdout)["devices"]
    return devices


def used_bytes(state: Path) -> int:
    return sum(int(card["used_bytes"]) for card in cards(state))
