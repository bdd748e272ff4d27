"""A lab whose slots are audited as the agent does it, and tenants that lie about themselves."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from bench._lab import BUILD, KERNELS, Lab, Tenant
from bench._report import ROOT

from calabash.agent.auditor import Auditor
from calabash.agent.inventory import Inventory
from calabash.agent.pages import LimitsPage, UsagePage
from calabash.agent.reap import Keeping
from calabash.agent.residual import Residual
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId, ComputePolicy
from calabash.seams.gpu.nvidia import open_driver
from calabash.seams.gpu.protocol import DriverOptions
from calabash.seams.host.processes import identify, send_signal

ROUND_S = 0.05
FORGER = Path(__file__).with_name("page_forger.c")


def forger() -> Path:
    """The program that forges usage pages, compiled when its source is newer."""
    target = BUILD / FORGER.stem
    if not target.exists() or target.stat().st_mtime < FORGER.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'native'}", str(FORGER)]
        subprocess.run([*command, "-o", str(target)], check=True)
    return target


class TruthLab:
    """Slots on one simulated card, the arbiter, and an auditor in a thread. Use as a context manager."""

    def __init__(self) -> None:
        self.lab = Lab()
        self.told: list[AllocationId] = []
        self.frozen: list[AllocationId] = []
        self._stack = ExitStack()
        self._keepings: list[Keeping] = []
        self._owners: dict[int, AllocationId] = {}
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.lab)
        assert self.lab.node is not None
        driver = open_driver(DriverOptions(sim_state=self.lab.node.state))
        self._stack.callback(driver.close)
        self._auditor = Auditor(Inventory([driver]), self._owners.get, freeze=self._freeze, tell=self._tell)
        thread = threading.Thread(target=self._run)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._stop.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _run(self) -> None:
        pause_s, next_ns = ROUND_S, 0
        while not self._stop.wait(pause_s):
            now_ns = time.monotonic_ns()
            if now_ns >= next_ns:
                next_ns = now_ns + int(ROUND_S * 1e9)
                self._auditor.tick(list(self._keepings), now_ns)
            pause_s = min(self._auditor.step(time.monotonic_ns()) or ROUND_S, ROUND_S)
        self._auditor.release()

    def _freeze(self, name: AllocationId, frozen: bool) -> None:
        """What a control group's freezer does, to the programs of this test."""
        if frozen:
            self.frozen.append(name)
        for pid, owner in list(self._owners.items()):
            process = identify(pid) if owner == name else None
            if process is not None:
                send_signal(process, signal.SIGSTOP if frozen else signal.SIGCONT)

    def _tell(self, name: AllocationId, device: DeviceUuid, owed_ns: int) -> None:
        assert device == self.lab.uuid
        assert owed_ns > 0
        self.told.append(name)

    def slot(self, name: str, core_percent: int, policy: ComputePolicy = ComputePolicy.FIXED) -> Path:
        """A slot under audit."""
        path = self.lab.slot(name, core_percent=core_percent, policy=policy, memory_limit_bytes=8 << 30)
        self._keepings.append(
            Keeping(
                usage=UsagePage.of_slot(path),
                limits=LimitsPage.of_slot(path),
                lease=path / "lease",
                residuals=[Residual()],
            )
        )
        return path

    def load(self, name: str, *arguments: object, preload: bool = True) -> Tenant:
        """A program of a slot; ``preload`` False: without the library that keeps its limits."""
        tenant = self.lab.start(name if preload else None, "gpuload", "--kernels", KERNELS, *arguments)
        self._owners[tenant.pid] = AllocationId(name)
        tenant.wait_ready()
        return tenant

    def forge(self, name: str, *what: str) -> None:
        """Have the usage page of a slot written over until the lab closes."""
        path = self.lab.home / "alloc" / name / "usage"
        process = subprocess.Popen([str(forger()), str(path), *what], stdout=subprocess.PIPE)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()

    def percent(self, tenants: list[Tenant], seconds: float, settle: float) -> list[float]:
        """What part of the card each had, by the card's own books."""
        time.sleep(settle)
        before_ns, before = self.lab.busy_ns()
        time.sleep(seconds)
        after_ns, after = self.lab.busy_ns()
        return [(after[t.pid] - before[t.pid]) / (after_ns - before_ns) * 100 for t in tenants]
