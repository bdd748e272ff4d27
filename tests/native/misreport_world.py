"""A lab in virtual time whose slots are audited as by the agent, with tenants that misreport their GPU time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

import msgspec
from bench._lab import KERNELS
from bench._report import ROOT
from bench._virtual import VirtualLab, VirtualTenant
from tests.compiled import compiled
from tests.native.misreport_auditor import AUDITED_FILE, Audited, Program

from calabash.model.request import AllocationId, ComputePolicy

HERE = Path(__file__).resolve().parent


def forger() -> Path:
    """Compile the program that forges usage pages."""
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'native'}"]
    return compiled("page_forger", [*command, HERE / "page_forger.c"])


class MisreportLab(VirtualLab):
    """Slots on one simulated card, the arbiter, and an auditor. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self._audited = Audited()

    def __enter__(self) -> Self:
        super().__enter__()
        assert self.node is not None
        self._publish(self._audited)
        command = [sys.executable, str(HERE / "misreport_auditor.py"), str(self.home), str(self.node.state)]
        self._auditor = self.start_command(command, os.environ | {"PYTHONPATH": str(ROOT)})
        return self

    def _publish(self, audited: Audited) -> None:
        self._audited = audited
        coming = self.home / f".{AUDITED_FILE}"
        coming.write_bytes(msgspec.json.encode(audited))
        coming.rename(self.home / AUDITED_FILE)

    @property
    def reported_slots(self) -> list[str]:
        """Return the slots whose programs were found to report too little time, in order."""
        return self._reported("told")

    @property
    def frozen(self) -> list[str]:
        """Return the slots whose programs were stopped by force, in order."""
        return self._reported("frozen")

    def _reported(self, what: str) -> list[str]:
        assert self._auditor.process.poll() is None, self._auditor.output()
        lines = [line.split() for line in self._auditor.output().splitlines()]
        return [name for kind, name in lines if kind == what]

    def audited_slot(self, name: str, core_percent: int, policy: ComputePolicy = ComputePolicy.FIXED) -> None:
        """Make a slot under audit."""
        self.slot(name, core_percent=core_percent, policy=policy, memory_limit_bytes=8 << 30)
        self._publish(msgspec.structs.replace(self._audited, slots=[*self._audited.slots, AllocationId(name)]))

    def audited_load(self, name: str, *arguments: object, preload: bool = True) -> VirtualTenant:
        """Start a program of a slot; ``preload`` False: without the library that enforces its limits."""
        tenant = self.start(name if preload else None, "gpuload", "--kernels", KERNELS, *arguments)
        program = Program(slot=AllocationId(name), pid=tenant.pid, place=tenant.place)
        self._publish(msgspec.structs.replace(self._audited, programs=[*self._audited.programs, program]))
        tenant.wait_ready()
        return tenant

    def forge(self, name: str, *what: str) -> None:
        """Have the usage page of a slot overwritten until the lab closes."""
        path = self.home / "alloc" / name / "usage"
        self.start_command([str(forger()), str(path), *what], dict(os.environ)).wait_ready()
