"""Reclaim and residual memory over real pages, with a driver that answers what it is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.agent import pages, slot_content, slot_files
from calabash.agent.pagelib import LIBRARY, PageLibrary
from calabash.agent.pages_layout import ProcState
from calabash.agent.reclaim import Keeping, Reclaimer
from calabash.agent.residual import Residual
from calabash.model.device import DeviceProcess, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.seams.host.processes import pid_namespace, start_time

CARD = DeviceUuid("GPU-1")


class Driver:
    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.lost = False

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        if self.lost:
            raise CalabashError("it does not answer", reason=Reason.UNHEALTHY)
        return tuple(DeviceProcess(pid=p, used_mib=m) for p, m in self.held.items())


class Inventory:
    def __init__(self) -> None:
        self.driver = Driver()

    def driver_of(self, uuid: DeviceUuid) -> Driver:
        return self.driver

    def model_of(self, uuid: DeviceUuid) -> str:
        return "A100"


class Setup:
    def __init__(self, directory: Path) -> None:
        spec = slot_content.SlotSpec(
            allocation=AllocationId("a1"), devices=(slot_content.SlotDevice(uuid=CARD, memory_limit_bytes=2048 * MIB),)
        )
        slot_files.create_slot(directory, spec)
        self.keeping = Keeping(
            usage=pages.UsagePage.of_slot(directory),
            limits=pages.LimitsPage.of_slot(directory),
            lease=directory / "lease",
            residuals=[Residual()],
        )
        self.inventory = Inventory()
        self.driver = self.inventory.driver
        self.reclaimer = Reclaimer(cast("Any", self.inventory), PageLibrary())

    def tenant(self, index: int, pid: int, *, used_mib: int, context_mib: int = 0) -> None:
        """What a shim writes: a live process with memory, its provisional context included."""
        page = self.keeping.usage._page
        proc = page.proc[index]
        proc.generation = 1
        proc.pid = pid
        proc.start_time = start_time(pid) or 1
        proc.pid_namespace = pid_namespace()
        proc.share[0].used_bytes = used_mib * MIB
        proc.context_bytes[0] = context_mib * MIB
        proc.state = ProcState.LIVE
        page.device[0].used_bytes += used_mib * MIB

    def look(self) -> None:
        self.reclaimer.tick([self.keeping])

    @property
    def used_mib(self) -> int:
        return self.keeping.usage.device(0).used_bytes // MIB

    @property
    def residual_mib(self) -> int:
        return int(self.keeping.limits.device(0).residual_bytes) // MIB


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    assert LIBRARY.is_file(), "the native libraries are not built: make native"
    return Setup(tmp_path / "slot")


def _dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_dead_are_taken_off_the_counters(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=100)
    setup.tenant(1, _dead_pid(), used_mib=700)
    setup.look()
    assert setup.used_mib == 100
    assert [p.index for p in setup.keeping.usage.procs()] == [0]


def test_a_dead_process_counts_as_long_as_the_driver_lists_it(setup: Setup) -> None:
    dead = _dead_pid()
    setup.tenant(0, dead, used_mib=700)
    setup.driver.held[dead] = 700
    setup.look()
    assert setup.used_mib == 700
    setup.driver.held.clear()
    setup.look()
    assert setup.used_mib == 0


def test_the_dead_of_a_lost_card_are_reclaimed_too(setup: Setup) -> None:
    setup.tenant(0, _dead_pid(), used_mib=700)
    setup.driver.lost = True
    setup.look()
    assert setup.used_mib == 0


def test_a_pid_that_was_used_again_is_another_process(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=700)
    setup.keeping.usage._page.proc[0].start_time -= 1
    setup.look()
    assert setup.used_mib == 0


def test_what_the_ledger_cannot_see_becomes_residual(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.driver.held = {os.getpid(): 900, 1: 5000}
    setup.look()
    assert setup.residual_mib == 400


def test_a_provisional_context_is_exchanged_for_the_residual_that_covers_it(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=500 + 300, context_mib=300)
    setup.driver.held = {os.getpid(): 500 + 410}
    setup.look()
    assert (setup.used_mib, setup.residual_mib) == (800, 410), "residual up first"
    setup.look()
    assert (setup.used_mib, setup.residual_mib) == (500, 410), "provisional down second"
    setup.look()
    assert int(setup.keeping.limits.device(0).context_bytes) == 410 * MIB, "and the next one is charged what it cost"


def test_figures_that_a_tenant_invents_only_describe_that_tenant(setup: Setup) -> None:
    page = setup.keeping.usage._page
    setup.tenant(0, os.getpid(), used_mib=100)
    page.proc[1].state = 77
    page.proc[1].pid = -5
    page.proc[1].share[0].used_bytes = (1 << 64) - 1
    page.proc[2].state = ProcState.LIVE
    page.proc[2].pid = 1
    page.device[0].used_bytes = (1 << 64) - 1
    setup.driver.held = {1: 5000}
    setup.look()
    assert 0 <= setup.residual_mib <= 5000
