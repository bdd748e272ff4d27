"""Reaper and residual memory on real pages, with a driver that answers as set by the test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from calabash.adapters.host.processes import InnerPid, Process, identify, pid_namespace, start_time
from calabash.model.device import DeviceProcess, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.node.processes import reaper
from calabash.node.processes.reaper import OpenSlot, Reaper
from calabash.node.slots import content as slots_content
from calabash.node.slots import files as slots_files
from calabash.node.slots import pages
from calabash.node.slots.layout import ProcState
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.ordered_words import LIBRARY
from calabash.node.slots.overhead import Residual

CARD = DeviceUuid("GPU-1")


class Driver:
    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.lost = False

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        if self.lost:
            raise CalabashError("it does not answer", reason=Reason.UNHEALTHY)
        return tuple(DeviceProcess(pid=p, used_bytes=m * MIB) for p, m in self.held.items())


class Inventory:
    def __init__(self) -> None:
        self.driver = Driver()

    def driver_of(self, uuid: DeviceUuid) -> Driver:
        return self.driver

    def processes(self, uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
        return self.driver.processes(uuid)

    def model_of(self, uuid: DeviceUuid) -> str:
        return "A100"


class Setup:
    def __init__(self, directory: Path) -> None:
        spec = slots_content.SlotSpec(
            allocation=AllocationId("a1"), devices=(slots_content.SlotDevice(uuid=CARD, memory_limit_bytes=2048 * MIB),)
        )
        slots_files.create_slot(directory, spec)
        self.slot = OpenSlot(
            usage=pages.UsagePage.of_slot(directory),
            limits=pages.LimitsPage.of_slot(directory),
            lease=directory / "lease",
            residuals=[Residual()],
        )
        self.inventory = Inventory()
        self.driver = self.inventory.driver
        self.now_s = 0.0
        self.reaper = Reaper(cast("Any", self.inventory), PageLibrary(), now_s=lambda: self.now_s)

    def tenant(self, index: int, pid: int, *, used_mib: int, context_mib: int = 0) -> None:
        """Write an entry as a shim does: a live process with memory, its context included."""
        page = self.slot.usage._page
        proc = page.proc[index]
        proc.generation = 1
        proc.pid = pid
        proc.start_time = start_time(pid) or 1
        proc.pid_namespace = pid_namespace()
        proc.share[0].used_bytes = used_mib * MIB
        proc.context_bytes[0] = context_mib * MIB
        proc.context_count = int(context_mib > 0)
        proc.state = ProcState.LIVE
        page.device[0].used_bytes += used_mib * MIB

    def tick(self) -> None:
        self.reaper.tick([self.slot])

    @property
    def used_mib(self) -> int:
        return self.slot.usage.device(0).used_bytes // MIB

    @property
    def residual_mib(self) -> int:
        return int(self.slot.limits.device(0).residual_bytes) // MIB


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    assert LIBRARY.is_file(), "the native libraries are not built: make native"
    return Setup(tmp_path / "slot")


def _dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_ended_process_is_removed_from_the_counters(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=100)
    setup.tenant(1, _dead_pid(), used_mib=700)
    setup.tick()
    assert setup.used_mib == 100
    assert [p.index for p in setup.slot.usage.procs()] == [0]


def test_ended_process_of_a_slot_without_limits_is_removed(setup: Setup) -> None:
    setup.slot.limits.device(0).memory_limit_bytes = 0
    setup.tenant(0, os.getpid(), used_mib=0)
    setup.tenant(1, _dead_pid(), used_mib=0)
    setup.driver.held[os.getpid()] = 900
    setup.tick()
    assert [p.index for p in setup.slot.usage.procs()] == [0]
    assert setup.residual_mib == 0


def test_ended_process_counts_as_long_as_the_driver_lists_it(setup: Setup) -> None:
    dead = _dead_pid()
    setup.tenant(0, dead, used_mib=700)
    setup.driver.held[dead] = 700
    setup.tick()
    assert setup.used_mib == 700
    setup.driver.held.clear()
    setup.tick()
    assert setup.used_mib == 0


def test_ended_process_of_a_lost_card_is_removed(setup: Setup) -> None:
    setup.tenant(0, _dead_pid(), used_mib=700)
    setup.driver.lost = True
    setup.tick()
    assert setup.used_mib == 0


def test_reused_pid_is_another_process(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=700)
    setup.slot.usage._page.proc[0].start_time -= 1
    setup.tick()
    assert setup.used_mib == 0


def test_memory_beyond_the_counters_becomes_residual(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.driver.held = {os.getpid(): 900, 1: 5000}
    setup.tick()
    assert setup.residual_mib == 400


def test_context_is_never_counted_twice(setup: Setup) -> None:
    """The charge of the context stays on the page; only its cost beyond that is residual, from the first reading on."""
    setup.tenant(0, os.getpid(), used_mib=500 + 300, context_mib=300)
    for held, residual in ((500, 0), (500 + 300, 0), (500 + 310, 10)):
        setup.driver.held = {os.getpid(): held}
        setup.tick()
        assert (setup.used_mib, setup.residual_mib) == (800, residual)


def test_reservation_in_progress_is_no_residual(setup: Setup) -> None:
    """The driver has the context and the shim has not written it yet: a reading in between must not count it twice."""
    setup.tenant(0, os.getpid(), used_mib=300)
    setup.slot.usage._page.proc[0].reserving_bytes[0] = 300 * MIB
    setup.driver.held = {os.getpid(): 300}
    for _ in range(10):
        setup.tick()
        assert setup.residual_mib == 0


def test_busy_process_of_the_slice_does_not_change_the_residual_of_another(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.tenant(1, os.getppid(), used_mib=700)
    busy = setup.slot.usage._page.proc[1]
    setup.driver.held = {os.getpid(): 540, os.getppid(): 700}
    for transactions in range(1, 10):
        busy.share[0].sequence = transactions
        busy.reserving_bytes[0] = 700 * MIB
        setup.tick()
        assert setup.residual_mib == 40


def test_residual_of_an_ended_process_is_removed(setup: Setup) -> None:
    dead = _dead_pid()
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.tenant(1, dead, used_mib=100)
    setup.driver.held = {os.getpid(): 540, dead: 400}
    setup.tick()
    assert setup.residual_mib == 340
    setup.driver.held = {os.getpid(): 540}
    setup.tick()
    assert (setup.used_mib, setup.residual_mib) == (500, 40)


def test_context_cost_is_learned_from_the_first_context_if_no_card_was_tested(setup: Setup) -> None:
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.slot.usage._page.proc[0].context_count = 1
    setup.driver.held = {os.getpid(): 500 + 410}
    setup.tick()
    setup.tick()
    assert int(setup.slot.limits.device(0).context_bytes) == 410 * MIB
    setup.driver.held = {os.getpid(): 500 + 800}
    setup.tick()
    setup.tick()
    assert int(setup.slot.limits.device(0).context_bytes) == 410 * MIB


def test_forged_values_of_a_tenant_affect_that_tenant_only(setup: Setup) -> None:
    page = setup.slot.usage._page
    setup.tenant(0, os.getpid(), used_mib=100)
    page.proc[1].state = 77
    page.proc[1].pid = -5
    page.proc[1].share[0].used_bytes = (1 << 64) - 1
    page.proc[2].state = ProcState.LIVE
    page.proc[2].pid = 1
    page.device[0].used_bytes = (1 << 64) - 1
    setup.driver.held = {1: 5000}
    setup.tick()
    assert 0 <= setup.residual_mib <= 5000


class Elsewhere:
    """A program in another PID namespace, as far as the reaper can see, that is no member of an allocation."""

    inside = InnerPid(namespace=7, pid=1 << 22)  # no pid of ours is as high

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = subprocess.Popen(["sleep", "600"])
        self.passes = 0
        monkeypatch.setattr(reaper, "in_other_namespaces", self.living)

    def living(self) -> dict[InnerPid, Process]:
        self.passes += 1
        process = identify(self.program.pid)
        return {self.inside: process} if process is not None else {}

    def end(self) -> None:
        self.program.kill()
        self.program.wait()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    one = Elsewhere(monkeypatch)
    yield one
    one.end()


def write_entry(setup: Setup, process: Elsewhere, *, used_mib: int) -> None:
    """Write the entry of a container that has entered a slot and is not known as a member yet."""
    setup.slot.members = list
    setup.tenant(0, process.inside.pid, used_mib=used_mib)
    entry = setup.slot.usage._page.proc[0]
    entry.pid_namespace, entry.start_time = process.inside.namespace, start_time(process.program.pid)


def test_process_that_is_not_yet_a_member_is_not_reaped(setup: Setup, elsewhere: Elsewhere) -> None:
    write_entry(setup, elsewhere, used_mib=500)
    setup.tick()
    assert setup.used_mib == 500, "it lives, and no driver lists it yet"
    elsewhere.end()
    setup.tick()
    assert (setup.used_mib, setup.slot.usage.procs()) == (0, [])


def test_reused_namespace_and_pid_are_another_process(setup: Setup, elsewhere: Elsewhere) -> None:
    write_entry(setup, elsewhere, used_mib=500)
    setup.slot.usage._page.proc[0].start_time -= 1
    setup.tick()
    assert setup.used_mib == 0


def test_entry_being_taken_is_not_reaped(setup: Setup, elsewhere: Elsewhere) -> None:
    """The entry still has the namespace and start time of the process before."""
    for pid, namespace in ((os.getpid(), 7), (elsewhere.inside.pid, pid_namespace())):
        setup.tenant(0, pid, used_mib=0)
        entry = setup.slot.usage._page.proc[0]
        entry.state, entry.pid_namespace, entry.start_time = ProcState.TAKEN, namespace, 1
        setup.tick()
        assert [p.pid for p in setup.slot.usage.procs()] == [pid]
    elsewhere.end()
    setup.tick()
    assert setup.slot.usage.procs() == []


def test_page_full_of_unknown_entries_causes_no_more_searches_of_all_processes(
    tmp_path: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(tmp_path / "slot")

    def slowly() -> dict[InnerPid, Process]:
        setup.now_s += 0.1
        return elsewhere.living()

    monkeypatch.setattr(reaper, "in_other_namespaces", slowly)
    write_entry(setup, elsewhere, used_mib=500)
    while setup.now_s < 10.0:
        setup.tick()
        setup.now_s += 0.25
    assert elsewhere.passes <= 10.0 * reaper.PASS_SHARE / 0.1
    assert setup.used_mib == 500


class Counted:
    """Counts the reads of process entries of a slot and the calls of its driver."""

    def __init__(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables = self.calls = 0
        read, ask = pages.UsagePage.procs, setup.driver.processes

        def counted_read(page: pages.UsagePage) -> list[pages.ProcUsage]:
            self.tables += 1
            return read(page)

        def counted_ask(uuid: DeviceUuid) -> tuple[DeviceProcess, ...]:
            self.calls += 1
            return ask(uuid)

        monkeypatch.setattr(pages.UsagePage, "procs", counted_read)
        monkeypatch.setattr(setup.driver, "processes", counted_ask)

    def counts(self, setup: Setup, ticks: int) -> tuple[int, int]:
        """Return the reads and the calls of ``ticks`` ticks with an unchanged list of slots, 0.2 s apart."""
        self.tables = self.calls = 0
        open_slots = (setup.slot,)
        for _ in range(ticks):
            setup.now_s += 0.2
            setup.reaper.tick(open_slots)
        return self.tables, self.calls


def test_slot_without_processes_costs_a_driver_call_every_other_tick(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.tick()
    assert Counted(setup, monkeypatch).counts(setup, 100) == (0, 50)


def test_process_missed_by_the_last_examination_is_found_in_time(setup: Setup) -> None:
    setup.tick()
    setup.slot.usage._page.proc[900].state = ProcState.TAKEN  # neither memory nor the driver tells of it
    setup.slot.usage._page.proc[900].pid = _dead_pid()
    setup.now_s += reaper.AGAIN_EMPTY_S
    setup.tick()
    assert setup.slot.usage.procs() == []


def test_idle_process_is_examined_every_two_seconds_only(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.driver.held = {os.getpid(): 540, 1: 700}
    for _ in range(reaper.SAME_READINGS + 1):
        setup.tick()
    tables, calls = Counted(setup, monkeypatch).counts(setup, 100)
    assert tables <= 2 * 0.2 * 100 / reaper.AGAIN_S
    assert calls <= 100 + 0.2 * 100 / reaper.AGAIN_S


@pytest.mark.parametrize("told_by", ["driver", "ledger"])
def test_change_of_an_idle_process_is_seen_at_the_next_tick(setup: Setup, told_by: str) -> None:
    setup.tenant(0, os.getpid(), used_mib=500)
    setup.driver.held = {os.getpid(): 540}
    for _ in range(2 * reaper.SAME_READINGS):
        setup.tick()
    assert setup.residual_mib == 40
    if told_by == "driver":
        setup.driver.held = {os.getpid(): 600}
    else:
        page = setup.slot.usage._page
        page.proc[0].share[0].used_bytes -= 60 * MIB
        page.proc[0].share[0].sequence += 1
        page.device[0].used_bytes -= 60 * MIB
    setup.tick()
    setup.tick()
    assert setup.residual_mib == 100


def test_process_of_a_resting_slot_is_reaped_when_the_driver_no_longer_lists_it(setup: Setup) -> None:
    with subprocess.Popen(["sleep", "600"]) as program:
        setup.tenant(0, program.pid, used_mib=500)
        setup.driver.held = {program.pid: 500}
        for _ in range(2 * reaper.SAME_READINGS):
            setup.tick()
        program.kill()
    setup.driver.held = {}
    setup.tick()
    assert setup.used_mib == 0


def test_ending_process_is_examined_until_the_kernel_forgets_it(setup: Setup) -> None:
    with subprocess.Popen(["sleep", "600"]) as program:
        setup.tenant(0, program.pid, used_mib=500)
        setup.driver.held = {program.pid: 500}
        for _ in range(2 * reaper.SAME_READINGS):
            setup.tick()
        setup.driver.held = {}  # the driver lets go before the kernel does
        for _ in range(2 * reaper.SAME_READINGS):
            setup.tick()
        assert setup.used_mib == 500
        program.kill()
    setup.tick()
    assert setup.used_mib == 0


def test_process_that_lived_between_two_ticks_is_reaped_within_a_second(setup: Setup) -> None:
    open_slots = (setup.slot,)
    for _ in range(20):
        setup.now_s += 0.2
        setup.reaper.tick(open_slots)
    setup.tenant(0, _dead_pid(), used_mib=500)
    begun_s = setup.now_s
    while setup.used_mib and setup.now_s < begun_s + 10:
        setup.now_s += 0.2
        setup.reaper.tick(open_slots)
    assert setup.now_s - begun_s <= reaper.MARKS_S + 0.4


def test_first_process_of_a_slot_is_seen_when_the_driver_lists_it(setup: Setup) -> None:
    setup.tick()
    setup.tenant(700, os.getpid(), used_mib=500)
    setup.driver.held = {os.getpid(): 540}
    for _ in range(3):  # every other look asks the driver of an unused card
        setup.tick()
    assert setup.residual_mib == 40
