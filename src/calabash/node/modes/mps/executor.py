"""Executor of mode mps: starts the MPS service of a device or MIG instance with its first slice and stops it after its last.

This module implements the interface of sharing modes; ``services`` manages the MPS services.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from calabash.adapters.gpu.nvidia.mps import find_program
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.model.units import MIB
from calabash.node.modes.compute_modes import ComputeModes
from calabash.node.modes.mps.daemon import Share
from calabash.node.modes.mps.service import CardService
from calabash.node.modes.mps.services import Services
from calabash.node.modes.mps.target import Served, place_of, served_at
from calabash.node.modes.protocol import NodeTools, ViewOnly
from calabash.node.slots.content import SlotDevice
from calabash.sharing import mps
from calabash.sharing.protocol import Edits, Mount, visible_device

log = structlog.get_logger(__name__)


class MpsExecutor(ViewOnly):
    """Executor of slices whose compute share is enforced by NVIDIA MPS and whose memory limit is enforced by the shim."""

    name = mps.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._services = Services(tools)
        self._compute = ComputeModes(tools.home / "compute-modes.mps.json", tools.inventory.driver_of)

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Return the limits of the slot. Raises CalabashError if MPS or the shim is missing, or for several slices."""
        find_program(self._tools.environment, self._tools.driver_files)
        if not self._tools.library.is_file():
            raise CalabashError(
                f"{self._tools.library.name} has not been built, so programs cannot request their share",
                reason=Reason.BAD_FILE,
                hint="build it with: make native",
            )
        if len(record.placement.slices) != 1:
            raise CalabashError(
                f"a program of mode mps can use one device, {len(record.placement.slices)} requested",
                reason=Reason.MODE_CONFLICT,
                hint="request one device in mode mps",
            )
        return _slot(record, served_at(place_of(record), self._tools))

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        service = self._services.hold(record, _share)
        self._make_exclusive(service)
        service.ensure()
        self._services.write_records()
        return _slot(record, service.served)

    def edits(self, record: AllocationRecord) -> Edits:
        """Return the environment and mounts of a program.

        The environment makes an unmodified program limit itself to its share even if the admission socket is closed.
        """
        service = self._services.at(place_of(record))
        if service is None:
            return Edits()
        share, pipe = _share(record, service.served), str(service.control.pipe)
        environment = (
            *service.control.client_variables,
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(share.percent)),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={share.memory_mib}M"),
            ("CALABASH_MPS_DOOR", str(service.socket_path)),
            *(() if service.served.whole else visible_device(service.served.uuid)),
        )
        socket_directory = str(service.socket_path.parent)
        mounts = (
            Mount(path=socket_directory, inside=socket_directory),
            Mount(path=pipe, inside=pipe, read_only=False),
            Mount(path="/dev/shm", inside="/dev/shm", read_only=False),  # noqa: S108 - the service's own channel
        )
        return Edits(environment=environment, mounts=mounts, device_nodes=service.served.nodes)

    def warnings(self, record: AllocationRecord) -> tuple[Text, ...]:
        note = self._services.notes.get(record.id)
        return (note,) if note else ()

    def leave(self, record: AllocationRecord) -> None:
        """Release the allocation's share. The daemon is stopped at the next poll if no other allocation holds a share."""
        service = self._services.at(place_of(record))
        if service is None:
            return
        service.leave(record.id)
        if service.idle:
            self._compute.restore(service.served.card)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        for record in held:
            try:
                self._services.hold(record, _share).resume()
            except CalabashError as error:  # ``verify`` ends the allocation, or the service starts later
                log.warning("an allocation has no MPS service", allocation=record.id, error=error.message)
        self._services.adopt()
        self._compute.keep_only(self._exclusive_cards())

    def poll(self) -> None:
        for service in self._services.all():
            if service.idle:
                self._stop(service)
                continue
            try:
                before = service.daemon
                service.poll()
                if service.daemon != before:
                    self._services.write_records()
            except CalabashError as error:
                log.error("the MPS service is unhealthy", served=service.served.name, error=error.message)

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        mended: list[str] = []
        for record in held:
            self._keep(record)
        for service in self._services.all():
            if service.idle:
                continue
            if self._make_exclusive(service):
                mended.append(f"the compute mode of {service.served.name} had been changed and was set again")
            try:
                mended += service.verify()
            except CalabashError as error:
                log.warning("the MPS service cannot be checked", served=service.served.name, error=error.message)
        self._compute.keep_only(self._exclusive_cards())
        self._services.clear_failures()
        return mended

    def stop(self) -> None:
        """Stop the services without allocations. The other daemons keep running; the next pool adopts them."""
        for service in self._services.all():
            if service.idle:
                self._stop(service)
            else:
                service.release()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _stop(self, service: CardService) -> None:
        if self._services.stop(service):
            self._compute.restore(service.served.card)

    def _exclusive_cards(self) -> set[DeviceUuid]:
        return {s.served.card for s in self._services.all() if s.served.whole and not s.idle}

    def _keep(self, record: AllocationRecord) -> None:
        """End an allocation whose MIG instance does not exist any more or was created again.

        An allocation that has no MPS service yet is not ended while the instance exists.
        """
        place = place_of(record)
        service = self._services.at(place)
        holds = service is not None and service.holds(record.id)
        if not place[1] or (service is not None and service.serves and holds):
            return
        try:
            found = served_at(place, self._tools).uuid
        except CalabashError as error:
            if error.reason is not Reason.UNHEALTHY:
                return  # the device does not answer now
            why = "does not exist any more"
        else:
            if service is None or not holds or found == service.served.uuid:
                return
            why = "was created again"
        self._tools.allocations.end(record.id, Reason.UNHEALTHY, f"its {place[1]} at {place[2]} {why}")

    def _make_exclusive(self, service: CardService) -> bool:
        """Set the compute mode so that only the MPS server can use the device. Return True if it had been changed.

        If the mode cannot be set, unmanaged processes are still detected and reported.
        """
        if not service.served.whole:
            return False  # a MIG instance has no compute mode
        try:
            return self._compute.make_exclusive(service.served.card)
        except CalabashError as error:
            log.debug("the compute mode could not be set", served=service.served.name, error=error.message)
            return False


def _slot(record: AllocationRecord, served: Served) -> tuple[SlotDevice, ...]:
    """Return the limits of the slot, without a policy: MPS enforces the share, so the arbiter assigns no time windows."""
    share = _share(record, served)
    return (SlotDevice(uuid=served.uuid, memory_limit_bytes=share.memory_mib * MIB, core_percent=share.percent),)


def _share(record: AllocationRecord, served: Served) -> Share:
    (part,) = record.placement.slices
    return Share(percent=served.share_of(part), memory_mib=part.memory_mib)


def open_mode(tools: NodeTools) -> MpsExecutor:
    """Return the executor of mode mps."""
    return MpsExecutor(tools)
