"""Partitioning of NVIDIA cards (MIG) over NVML, with the driver's errors translated to reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pynvml

from calabash.adapters.gpu.nvidia import nvml_mig as mig
from calabash.adapters.gpu.nvidia.nvml_cards import handle_of
from calabash.adapters.gpu.partitions import CardLayout, ComputeInstance, GpuInstance
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.mig import MigGeometry

T = TypeVar("T")


class Ask(Protocol):
    """Function that makes a call to a card's driver with a deadline and translates its errors."""

    def __call__(self, what: str, call: Callable[[], T], *, of: str) -> T: ...


class NvidiaPartitioning:
    """Implementation of ``Partitioning``: MIG on the cards of one driver."""

    def __init__(self, ask: Ask, parts: dict[DeviceUuid, DeviceUuid]) -> None:
        self._ask = ask
        self._parts = parts  # cards of MIG devices
        self._geometries: dict[DeviceUuid, MigGeometry] = {}

    def layout(self, uuid: DeviceUuid) -> CardLayout:
        found = self._ask(
            f"MIG instances of {uuid}", lambda: mig.layout_of(handle_of(uuid), self._geometry(uuid)), of=uuid
        )
        for part in [part for part, card in self._parts.items() if card == uuid]:
            del self._parts[part]
        self._parts.update((part.uuid, uuid) for instance in found.instances for part in instance.parts)
        return found

    def multiprocessors(self, uuid: DeviceUuid, part: DeviceUuid) -> int:
        return self._ask(f"multiprocessors of {part}", lambda: mig.multiprocessors_of(handle_of(part)), of=uuid)

    def enable(self, uuid: DeviceUuid, enabled: bool) -> None:
        """Set the MIG mode of a card. Raises CalabashError(CONFLICT) if the card is in use or must be reset first."""
        what = f"MIG mode of {uuid}"
        status = self._ask(what, lambda: mig.enable(handle_of(uuid), enabled), of=uuid)
        if status == pynvml.NVML_SUCCESS:
            return
        if status == pynvml.NVML_ERROR_RESET_REQUIRED:
            raise CalabashError(
                f"{what}: the card must be reset first",
                reason=Reason.CONFLICT,
                hint=f"nvidia-smi --gpu-reset -i {uuid}",
            )
        raise CalabashError(f"{what}: the card is in use", reason=Reason.CONFLICT)

    def create(self, uuid: DeviceUuid, profile: str, start: int) -> GpuInstance:
        return self._ask(
            f"making a {profile} at {start} on {uuid}",
            lambda: mig.create(handle_of(uuid), self._geometry(uuid), profile, start),
            of=uuid,
        )

    def create_part(self, uuid: DeviceUuid, instance: int, compute: int, start: int = -1) -> ComputeInstance:
        made = self._ask(
            f"making a part of {compute} compute slices in instance {instance} of {uuid}",
            lambda: mig.create_part(handle_of(uuid), instance, compute, start),
            of=uuid,
        )
        self._parts[made.uuid] = uuid
        return made

    def destroy_part(self, uuid: DeviceUuid, instance: int, part: int) -> None:
        self._ask(
            f"destroying part {part} of instance {instance} of {uuid}",
            lambda: mig.destroy_part(handle_of(uuid), instance, part),
            of=uuid,
        )

    def destroy(self, uuid: DeviceUuid, instance: int) -> None:
        self._ask(f"destroying instance {instance} of {uuid}", lambda: mig.destroy(handle_of(uuid), instance), of=uuid)

    def _geometry(self, uuid: DeviceUuid) -> MigGeometry:
        """Return the card's MIG geometry, which is read once; called in the card's thread.

        Raises CalabashError(MODE_CONFLICT) if the card does not support MIG.
        """
        found = self._geometries.get(uuid) or mig.geometry_of(handle_of(uuid))
        if found is None:
            raise CalabashError(f"{uuid} does not support MIG", reason=Reason.MODE_CONFLICT)
        self._geometries[uuid] = found
        return found
