"""Node agent that is driven by random steps until it is killed or has done a number of steps.

``python -m tests.daemons.programs.every_mode HOME SEED STEPS COUNTER``: recovers the state of the last run, checks that
records and machine agree, then grants, releases, drains and injects faults. COUNTER is a file whose first eight bytes
count the steps of all runs. Ends with 0 when STEPS are done, everything was released and nothing is left behind.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pynvml
import structlog

from calabash.adapters.clock import SystemClock
from calabash.adapters.gpu import sim
from calabash.adapters.gpu.library import shim_library, simulated_environment
from calabash.adapters.gpu.partitions import partitioning_of
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.adapters.gpu.vendors import open_present
from calabash.adapters.host.processes import send_signal
from calabash.adapters.store import open_store
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigState
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Placement, Slice
from calabash.node.agent import NodeAgent
from calabash.node.devices.settings import CardSettings, Wanted
from calabash.node.modes.passthrough import machine as passthrough_machine
from calabash.sharing.protocol import Misfit
from calabash.sharing.registry import fits, mode_for

FUNCTIONS = 4  # of a simulated card: each is a directory that has to be made and removed
PATIENCE_S = 60.0  # against hanging
REFUSALS = {
    Reason.NO_CAPACITY, Reason.NO_MEMORY, Reason.NO_CORES, Reason.MODE_CONFLICT, Reason.UNHEALTHY, Reason.CONFLICT,
    Reason.TOO_LARGE, Reason.NO_HOST_MEMORY,
}  # fmt: skip
BURST = ComputePolicy.BURST
LAYOUT = (("4g.40gb", 0), ("3g.40gb", 4))
SPILL_MIB = 40_000
CLASSES = {"": 0, "default": 0, "short": 1, "medium": 2, "long": 3}
ASKED = (
    GpuRequest(memory_mib=4096, core_percent=20),
    GpuRequest(memory_mib=12_000, core_percent=45, policy=BURST),
    GpuRequest(mode=ModeName("exclusive")),
    GpuRequest(mode=ModeName("timeslice")),
    GpuRequest(mode=ModeName("timeslice"), memory_mib=6000),
    GpuRequest(mode=ModeName("timeslice"), memory_mib=1000),
    GpuRequest(memory_mib=20_000, spill_mib=12_000, core_percent=10),
    GpuRequest(mode=ModeName("mps"), memory_mib=3000, core_percent=30),
    GpuRequest(mode=ModeName("mps"), memory_mib=1000, core_percent=10),
    GpuRequest(mig="1g.10gb"),
    GpuRequest(mig="3g.40gb"),
    GpuRequest(mode=ModeName("mig"), memory_mib=15_000, core_percent=28),
    GpuRequest(mode=ModeName("passthrough"), standing=True),
    GpuRequest(vf="vf", standing=True),
)


class UntilGivenBack:
    """Membership of processes for a test without programs: an allocation is held until its end is requested."""

    def retains(self, record: AllocationRecord, held_ns: int) -> bool:
        del record, held_ns
        return True

    def is_abandoned(self, record: AllocationRecord) -> bool:
        del record
        return False


class Life:
    """One run of the agent."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.random = random.Random(seed)
        self.node = sim.find_node(home, "lab")
        state = self.node.state
        self.store = open_store(f"sqlite:///{home}/journal.db")
        self.drivers = open_present(DriverOptions(sim_state=state))
        self.agent = NodeAgent(
            home=home,
            store=self.store,
            clock=SystemClock(),
            drivers=self.drivers,
            library=shim_library(),
            environment=simulated_environment(state),
            node="node",
            settings=CardSettings(spill_mib=SPILL_MIB),
            retention=UntilGivenBack(),
        )
        self.parts = cast("Any", self.agent)._parts
        self.agent.start()
        self.done: Counter[str] = Counter()
        self.number = self.random.randrange(1 << 60)

    # ---- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        kind = self.random.choices(
            (self.ask, self.end, self.drain, self.undrain, self.fix_mode, self.set, self.cut, self.hurt, self.agree),
            (50, 40, 1, 3, 1, 3, 1, 0.5, 3),
        )[0]
        kind()

    def ask(self) -> None:
        request = self.random.choice(ASKED)
        mode = mode_for(request).name
        states = list(self.agent.devices())
        self.random.shuffle(states)
        for state in states:
            answer = fits(state.device, *state.beside(), replace(request, mode=mode))
            if not isinstance(answer, Misfit):
                self.grant(request, mode, answer)
                return
        self.done["no room"] += 1

    def grant(self, request: GpuRequest, mode: ModeName, part: Slice) -> None:
        self.number += 1
        record = AllocationRecord(
            id=AllocationId(f"a{self.number:x}"),
            state=AllocationState.GRANTED,
            request=request,
            placement=Placement(node=self.agent.node, mode=mode, slices=(part,)),
            created_at=time.time(),
            granted_at=time.time(),
        )
        try:
            self.agent.grant(record)
        except CalabashError as error:
            if error.reason not in REFUSALS:
                raise
            self.done[f"refused {error.reason}"] += 1
        else:
            self.done[f"granted {mode}"] += 1

    def end(self) -> None:
        held = self.agent.records()
        if held:
            self.agent.end(self.random.choice(held).id, reason="released", explanation="")

    def drain(self) -> None:
        self._as_operator(lambda device: self.agent.administration.drain(device, why="a test", evict_after_s=None))

    def undrain(self) -> None:
        for state in self.agent.devices():
            self.agent.administration.undrain(state.device)

    def fix_mode(self) -> None:
        mode = self.random.choice(("auto", "auto", "auto", "mig", "vgpu", "mps", "timeslice"))
        self._as_operator(lambda device: self.agent.mig_layouts.set_mode(device, mode))

    def cut(self) -> None:
        """Set a fixed MIG layout whose instances serve mode mps, or remove the fixed layout."""
        layout, mode = self.random.choice(((LAYOUT, "mps"), ((), "auto")))

        def change(device: Any) -> None:
            self.agent.mig_layouts.apply([(device, layout)])
            self.agent.mig_layouts.set_mode(device, mode)
            self.done["layouts"] += bool(layout)

        if idle := [s for s in self.agent.devices() if not s.held and s.device.mig is not None]:
            self._as_operator(change, self.random.choice(idle))

    def set(self) -> None:
        """Change the settings of a card."""
        choice = self.random.choice
        wanted = Wanted(
            replicas=choice((None, 0, 2, 3, 12)),
            interval=choice((None, "auto", "default", "short", "medium", "long")),
            spill=choice((None, "auto", "off")),
        )
        self._as_operator(lambda device: self.agent.administration.set(device, wanted))

    def _as_operator(self, change: Callable[[Any], None], state: Any = None) -> None:
        state = state or self.random.choice(self.agent.devices())
        try:
            change(state.device)
        except CalabashError as error:
            if error.reason not in REFUSALS | {Reason.SELECTOR_MISMATCH}:
                raise

    def hurt(self) -> None:
        """Inject a fault after which a card recovers by itself, an error of a program, or the death of a service."""
        services = self.parts.modes[ModeName("mps")]._services.all()
        daemons = [service.daemon for service in services if service.daemon is not None]
        if daemons and self.random.random() < 0.5:
            send_signal(self.random.choice(daemons), signal.SIGKILL)
            self.done["daemons killed"] += 1
            return
        state = self.random.choice(self.agent.devices())
        what = self.random.choice((("xid", "13"), ("xid", "48"), ("ecc-double",)))
        self.inject(str(state.device.index), *what)

    def inject(self, gpu: str, *what: str) -> None:
        sim.inject(self.node, gpu, *what)
        self.done["faults"] += 1

    # ---- checks ---------------------------------------------------------------------------------------------------

    def agree(self) -> None:
        """Check the invariants of every moment.

        The journal has all allocations, each device has one mode, and no device memory or partition is granted twice.
        """
        with self.parts.lock:
            held = {record.id for record in self.agent.records()}
            written = {record.id for record in self.store.allocations()}
            states = self.agent.devices()
        assert held == written, (held - written, written - held)
        assert sum(h.slice.spill_mib for state in states for h in state.held) <= SPILL_MIB
        for state in states:
            slices = [part.slice for part in state.held]
            modes = {self.agent.record(name) for name in state.allocations} - {None}
            assert len({record.placement.mode for record in modes if record is not None}) <= 1, state
            assert sum(part.resident_mib for part in slices) <= state.device.memory_mib, state
            if "timeslice" in {record.placement.mode for record in modes if record is not None}:
                assert len(slices) <= state.device.replicas, state
            assert sum(h.slice.core_percent for h in state.held if h.policy is not ComputePolicy.BEST_EFFORT) <= 100, (
                state
            )
            if state.device.mig is not None:
                taken = MigState()
                places = [(part.profile, part.start) for part in slices if part.profile]
                for name, start in dict.fromkeys(places) if state.mode == "mps" else places:  # many share one there
                    before = taken
                    taken = taken.joined(state.device.mig, name, start)
                    assert taken.mask.bit_count() == before.mask.bit_count() + self._width(state, name), state

    @staticmethod
    def _width(state: Any, name: str) -> int:
        profile = state.device.mig.profile(name)
        assert profile is not None
        return int(profile.slices)

    def settle(self) -> None:
        """Wait until the cards, the machine and the slots agree with the records."""
        deadline = time.monotonic() + PATIENCE_S
        while wrong := self.wrong():
            assert time.monotonic() < deadline, wrong
            time.sleep(0.05)

    def wrong(self) -> list[str]:
        """Return the differences between records and machine now."""
        found: list[str] = []
        with self.parts.lock:
            records = self.agent.records()
            slots = set(self.parts.slots.all())
        names = {record.id for record in records}
        if slots != names:
            found.append(f"slots {slots ^ names}")
        machine = self.parts.modes[ModeName("passthrough")].machine
        by_mode: dict[str, set[str]] = {}
        for record in records:
            by_mode.setdefault(record.placement.mode, set()).update(s.device for s in record.placement.slices)
        whole_mps = {
            s.device for r in records for s in r.placement.slices if r.placement.mode == "mps" and not s.profile
        }
        classes = [device.timeslice for device in sim.show_node(self.node).devices]
        lent = [s for r in records for s in r.placement.slices if r.placement.mode == "passthrough"]
        for state in self.agent.devices():
            uuid, index = state.device.uuid, state.device.index
            given = uuid in by_mode.get("passthrough", ())
            whole = any(s.device == uuid and not s.vf for s in lent)
            driver = machine.card(state.device).driver
            if (driver == "vfio-pci") is not whole:
                found.append(f"device {index} has driver {driver}")
            if whole or state.device.health is Health.LOST:
                continue
            turns = CLASSES[state.device.interval if uuid in by_mode.get("timeslice", ()) else ""]
            if os.geteuid() == 0 and classes[index] != turns:
                found.append(f"device {index} has turns of class {classes[index]}, not {turns}")
            found += self._wrong_card(state, records, given=given, mps=uuid in whole_mps)
        return found

    def _wrong_card(self, state: Any, records: list[AllocationRecord], *, given: bool, mps: bool) -> list[str]:
        found: list[str] = []
        uuid, index = state.device.uuid, state.device.index
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        exclusive = pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        if exclusive is not mps:
            found.append(f"device {index}: exclusive {exclusive}, mps {mps}")
        partitioning = partitioning_of(self.parts.inventory.driver_of(uuid))
        if state.device.mig is None or partitioning is None:
            return found
        layout = partitioning.layout(uuid)
        standing = {(i.profile, i.start): {p.uuid for p in i.parts} for i in layout.instances}
        shown = {k.limits.allocation: set(k.limits.uuids) for k in self.parts.usage_tracker.open_slots()}
        cut = [(r, s) for r in records for s in r.placement.slices if s.device == uuid and s.profile]
        for record, part in cut:
            told = shown.get(record.id, set())
            if not standing.get((part.profile, part.start), set()) & told:
                found.append(f"device {index}: {record.id}: {part.profile} at {part.start}: {standing}, slot {told}")
        others = state.held and not cut
        if layout.enabled and (others or given):
            found.append(f"device {index} is cut and in another mode")
        return found

    def leave(self) -> None:
        """Release everything and check that nothing is left."""
        for state in self.agent.devices():
            self.agent.mig_layouts.set_mode(state.device, "auto")
        for record in self.agent.records():
            self.agent.end(record.id, reason="released", explanation="")
        self.settle()
        deadline = time.monotonic() + PATIENCE_S
        while self.agent.records() or (self.home / "mps.json").exists():
            held = [(r.id, r.state, r.placement.mode, r.request.standing) for r in self.agent.records()]
            assert time.monotonic() < deadline, f"still held: {held}, {list(self.home.iterdir())}"
            time.sleep(0.05)
        self.settle()


def main() -> int:
    setattr(passthrough_machine, "_SIMULATED_FUNCTIONS", FUNCTIONS)  # noqa: B010 - it is the simulation's own
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    home, seed, steps, counter = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    life = Life(home, seed)
    with counter.open("r+b") as file, mmap.mmap(file.fileno(), 8) as count:
        life.settle()
        print("settled", flush=True)
        while (so_far := struct.unpack("<q", count[:8])[0]) < steps:
            life.step()
            count[:8] = struct.pack("<q", so_far + 1)
    life.settle()
    life.agree()
    life.undrain()
    life.leave()
    print(dict(life.done), flush=True)
    life.agent.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
