"""The agent's audit of the slots of a ``MisreportLab``, as a process in the lab's virtual time.

``misreport_auditor.py HOME STATE`` reads the slots and their programs from ``HOME/audited`` and prints ``told NAME`` when it
reports a program and ``frozen NAME`` when it stops one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from bench._virtual import MemberControl

from calabash.adapters.gpu.nvidia.driver import open_driver
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash.node.audit.auditor import Auditor
from calabash.node.devices.inventory import Inventory
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.overhead import Residual
from calabash.node.slots.pages import LimitsPage, UsagePage

ROUND_S = 0.05
AUDITED_FILE = "audited"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program of a slot, and its number among the members of the virtual time."""

    slot: AllocationId
    pid: int
    place: int


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file ``audited``."""

    slots: list[AllocationId] = []
    programs: list[Program] = []


class SlotAuditor:
    """The auditor of the slots of one home."""

    def __init__(self, home: Path, state: Path) -> None:
        self._home = home
        self._audited = Audited()
        self._open_slots: dict[AllocationId, OpenSlot] = {}
        self._members = MemberControl(Path(os.environ["VIRTUAL_TIME"]))
        inventory = Inventory([open_driver(DriverOptions(sim_state=state))])
        self._auditor = Auditor(inventory, self, freezes=True, report=self._print_report)

    def run(self) -> None:
        """Audit until the lab kills this process."""
        pause_s, next_ns = ROUND_S, 0
        while True:
            time.sleep(pause_s)
            now_ns = time.monotonic_ns()
            if now_ns >= next_ns:
                next_ns = now_ns + int(ROUND_S * 1e9)
                self._read()
                self._auditor.tick(list(self._open_slots.values()), now_ns)
            pause_s = min(self._auditor.step(time.monotonic_ns()) or ROUND_S, ROUND_S)

    def _read(self) -> None:
        self._audited = msgspec.json.decode((self._home / AUDITED_FILE).read_bytes(), type=Audited)
        for name in self._audited.slots:
            if name not in self._open_slots:
                path = self._home / "alloc" / name
                self._open_slots[name] = OpenSlot(
                    usage=UsagePage.of_slot(path),
                    limits=LimitsPage.of_slot(path),
                    lease=path / "lease",
                    residuals=[Residual()],
                )

    def allocation_of(self, pid: int) -> AllocationId | None:
        return next((program.slot for program in self._audited.programs if program.pid == pid), None)

    def freeze(self, name: AllocationId, frozen: bool) -> None:
        if frozen:
            print("frozen", name, flush=True)
        for program in self._audited.programs:
            if program.slot == name:
                self._members.set_stopped(program.place, frozen)

    def _print_report(self, name: AllocationId, device: DeviceUuid, owed_ns: int) -> None:
        assert device
        assert owed_ns > 0
        print("told", name, flush=True)


if __name__ == "__main__":
    SlotAuditor(Path(sys.argv[1]), Path(sys.argv[2])).run()
