"""Tests of the container image for aarch64: its Python, in an emulator, runs the product and serves a tenant's pages."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.native.machine import AVAILABLE, EMULATOR
from tools import image

SITE = "usr/lib/python3/dist-packages"
AGENT = """
import platform
from pathlib import Path
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.pages import LimitsPage, TurnPlan
from calabash.node.slots.layout import Gate
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import create_slot
import sys
slot = Path(sys.argv[1])
create_slot(slot, SlotSpec(allocation="a-1", devices=(SlotDevice(uuid="GPU-0", memory_limit_bytes=1 << 30),)))
PageLibrary()
limits = LimitsPage.of_slot(slot)
limits.set_gate(0, Gate.TURN, TurnPlan(from_ns=1, start_ns=2, end_ns=3, period_ns=4), neighbours=5)
limits.add_seen(0, 7, unreported_ns=6)
device = limits.device(0)
print(platform.machine(), device.word, device.gate, device.plan.period_ns, device.neighbours, limits.charges(0))
"""

pytestmark = pytest.mark.skipif(
    not AVAILABLE or not image.fetched("aarch64").exists(),
    reason="needs an emulator and packages for aarch64: tools/bootstrap --tests",
)


def test_image_for_aarch64_runs_the_product_and_writes_control_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")  # everything is in the cache
    with ThreadPoolExecutor(3) as several:
        tree = image.assemble(tmp_path / "tree", "aarch64", several)
    places = (f"PYTHONPATH={tree.product / SITE}:{tree.libraries / SITE}", f"PYTHONHOME={tree.base / 'usr'}")
    words = [word for place in (*places, "PYTHONDONTWRITEBYTECODE=1") for word in ("-E", place)]
    (python,) = tree.base.glob("usr/bin/python3.[0-9]*")

    def run(*arguments: str | Path) -> str:
        command = [*EMULATOR[:1], "-L", str(tree.base), *words, str(python), "-s", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(tree.product / "usr/local/bin/calabash", "--version").startswith("calabash, version ")
    assert run("-c", AGENT, tmp_path / "slot").split(maxsplit=5) == ["aarch64", "2", "2", "4", "5", "(6, 7)\n"]
