"""Executor of mode vgpu, whose limits the shim enforces.

The executor also measures the memory of an empty CUDA context, and corrects the memory counters of slots by the
driver's values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably
from calabash.adapters.host.processes import boot_id
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceReading, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import MIB, format_mib
from calabash.node.devices.probe import probe_card
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.processes.reaper import Reaper
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.native import PageLibrary
from calabash.node.slots.open_pages import Pages
from calabash.sharing import vgpu

TRIES = 2  # devices of a model that are probed at a start, which waits for the probes
CONTEXTS_FILE = "contexts.json"

log = structlog.get_logger(__name__)


class KnownContexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``ContextCostFile``.

    ``contexts`` has the bytes of an empty context by device model, ``learned_under`` the boot ID and the driver
    versions at the measurement.
    """

    contexts: dict[str, int] = {}
    learned_under: str = ""


class ContextCostFile:
    """File with the memory of an empty CUDA context per device model. A damaged file is treated as empty.

    A pool that starts while no device can be probed, because all are full or do not answer, enforces its slices with
    these values.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> KnownContexts:
        try:
            content = self._file.read_bytes()
            try:
                return msgspec.json.decode(content, type=KnownContexts)
            except msgspec.ValidationError:  # written by a version that stored only the bytes by model
                return KnownContexts(contexts=msgspec.json.decode(content, type=dict[str, int]))
        except FileNotFoundError:
            return KnownContexts()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the file of context costs cannot be read", file=str(self._file), error=str(error))
            return KnownContexts()

    def write(self, contexts: Mapping[str, int], *, learned_under: str) -> None:
        known = KnownContexts(contexts=dict(contexts), learned_under=learned_under)
        try:
            write_durably(self._file, msgspec.json.encode(known))
        except OSError as error:
            log.warning("the file of context costs cannot be written", file=str(self._file), error=str(error))


class VgpuExecutor(ViewOnly):
    """Executor of slices whose memory and compute limits the shim enforces."""

    name = vgpu.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._reaper = _reaper(tools)
        self._known = ContextCostFile(tools.home / CONTEXTS_FILE)

    def start(self) -> None:
        """Measure the memory of an empty CUDA context for each device model.

        A context is charged this amount until the driver reports its size. Healthy devices of each model are probed, at
        most ``TRIES``, until one gives the value. Otherwise the value of an earlier pool is used. Values measured since
        the last boot with the same driver are not measured again, so that a pool starts faster after a crash.
        """
        reaper = self._reaper
        if reaper is None:
            return
        before = self._known.read()
        for model, bytes_ in before.contexts.items():
            reaper.learn_context(model, bytes_)
        versions = sorted({f"{d.vendor} {d.driver_version()}" for d in self._tools.inventory.drivers})
        under = " ".join((boot_id(), *versions))
        tries: Counter[str] = Counter()
        told: set[str] = set(before.contexts) if boot_id() and before.learned_under == under else set()
        for device in sorted(self._tools.inventory.devices(), key=lambda d: d.mig_enabled):  # devices without MIG first
            model = device.model
            if device.health is Health.HEALTHY and model not in told and tries[model] < TRIES:
                tries[model] += 1
                if self._try(reaper, device):
                    told.add(model)
        if self._tools.contexts != before.contexts or before.learned_under != under:
            self._known.write(self._tools.contexts, learned_under=under)

    def _try(self, reaper: Reaper, device: Device) -> bool:
        """Probe a device. Return True if the probe measured the cost of a context."""
        inventory = self._tools.inventory
        probed = probe_card(inventory.driver_of(device.uuid), device, self._tools.environment)
        reaper.learn_context(device.model, probed.context_bytes)
        unknown = probed.figures and not inventory.health.entry(device.uuid).figures
        if unknown and not _busy(inventory.reading(device.uuid)):
            inventory.health.note(device.uuid, figures=dict(probed.figures))  # reference values for later tests
        log.info("probed a device", model=device.model, passed=probed.passed, context_mib=probed.context_bytes // MIB)
        return probed.context_bytes > 0

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Return the limits of the slot. Raises BAD_FILE if the shim, which enforces them, has not been built."""
        if self._reaper is None or not self._tools.library.is_file():
            raise CalabashError(
                f"{self._tools.library.name} has not been built, so mode {self.name} cannot be enforced",
                reason=Reason.BAD_FILE,
                hint="build it with: make native",
            )
        return tuple(
            SlotDevice(
                uuid=part.device,
                memory_limit_bytes=part.memory_mib * MIB,
                spill_bytes=part.spill_mib * MIB,
                core_percent=max(1, part.core_percent),
                policy=record.request.policy,
                priority=record.request.priority,
            )
            for part in record.placement.slices
        )

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        del record
        if self._reaper is not None:
            self._reaper.publish_context(pages.limits)

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        """Return warnings for slices that spill, and for slices that are smaller than an empty CUDA context."""
        if self._reaper is None:
            return ()
        smaller = [
            f"{format_mib(part.spill_mib)} of {format_mib(part.memory_mib)} may be paged to the host, which is many times"
            " slower than device memory"
            for part in record.placement.slices
            if part.spill_mib
        ]
        for part in record.placement.slices:
            context_mib = -(-self._reaper.context_bytes_of(part.device) // MIB)
            if part.resident_mib < context_mib:
                smaller.append(
                    f"the slice of {format_mib(part.resident_mib)} is smaller than an empty CUDA context"
                    f" on {self._tools.inventory.model_of(part.device)}, {format_mib(context_mib)}: request more"
                )
        return tuple(smaller)

    def poll(self) -> None:
        if self._reaper is not None:
            self._reaper.tick(self._tools.allocations.open_slots())

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """Do nothing: the agent adopts the slots, and the cost of contexts is published at the next poll."""


def _busy(reading: DeviceReading | None) -> bool:
    return reading is None or bool(reading.processes)


def _reaper(tools: NodeTools) -> Reaper | None:
    try:
        return Reaper(tools.inventory, PageLibrary(), tools.contexts)
    except CalabashError as error:
        log.warning("slices with limits cannot be granted", error=error.message)
        return None


def open_mode(tools: NodeTools) -> VgpuExecutor:
    """Return the executor of mode vgpu."""
    return VgpuExecutor(tools)
