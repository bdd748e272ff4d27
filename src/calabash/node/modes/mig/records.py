"""File of the MIG instances that the pool created, written before an instance is created.

The journal tells which allocation holds an instance; this file tells if an idle instance may be destroyed. An instance
without an entry was created outside the pool and is never destroyed. An entry without MIG devices shows that the pool
crashed before it had created the instance completely; an instance that exists at the entry's place then belongs to the
pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.gpu.partitions import CardLayout, GpuInstance
from calabash.adapters.host.files import write_durably
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason

log = structlog.get_logger(__name__)


class MadeInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that the pool created.

    A ``fixed`` instance belongs to an operator's layout: it is never destroyed for another profile, and it is created
    again if it is missing. ``uuids`` are its MIG devices, ``start`` its first memory slice.
    """

    device: str
    profile: str
    start: int
    uuids: tuple[str, ...] = ()
    fixed: bool = False


class CreatedInstances:
    """All instances that the pool created on this node. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._made: tuple[MadeInstance, ...] = self._read()

    def entry(self, device: DeviceUuid, instance: GpuInstance) -> MadeInstance | None:
        """Return the entry of an existing instance; None if the pool did not create it."""
        made = self._find(device, instance.profile, instance.start)
        uuids = {part.uuid for part in instance.parts}
        return made if made is not None and (not made.uuids or not uuids or uuids & set(made.uuids)) else None

    def fixed(self, device: DeviceUuid) -> list[MadeInstance]:
        """Return the instances of the operator's layout of a GPU."""
        return [made for made in self._made if made.device == device and made.fixed]

    def about_to_make(self, device: DeviceUuid, profile: str, start: int) -> None:
        """Record an instance that is about to be created. Raises DISK_FULL; the instance must not be created then."""
        known = self._find(device, profile, start)
        fixed = known is not None and known.fixed
        self._write(known, MadeInstance(device=device, profile=profile, start=start, fixed=fixed))

    def has_part(self, device: DeviceUuid, instance: GpuInstance, uuid: DeviceUuid) -> None:
        """Record a MIG device that was created in an instance of the pool. Raises DISK_FULL."""
        known = self.entry(device, instance)
        if known is not None:
            self._write(known, msgspec.structs.replace(known, uuids=(*known.uuids, uuid)))

    def destroyed(self, device: DeviceUuid, profile: str, start: int) -> None:
        """Remove the entry of a destroyed instance. Raises DISK_FULL.

        An instance of the operator's layout (``fixed``) keeps its entry, without MIG devices.
        """
        known = self._find(device, profile, start)
        if known is not None:
            self._write(known, msgspec.structs.replace(known, uuids=()) if known.fixed else None)

    def fix(self, device: DeviceUuid, places: Iterable[tuple[str, int]]) -> None:
        """Replace the operator's layout of a GPU.

        Args:
            device: the GPU.
            places: profile and first memory slice of each instance.
        """
        wanted = set(places)
        with self._lock:
            others = [m for m in self._made if m.device != device]
            ours = {(m.profile, m.start): m for m in self._made if m.device == device}
            kept = [
                msgspec.structs.replace(m, fixed=place in wanted)
                for place, m in ours.items()
                if place in wanted or m.uuids
            ]
            new = [
                MadeInstance(device=device, profile=profile, start=start, fixed=True)
                for profile, start in wanted - ours.keys()
            ]
            self._write_all((*others, *kept, *new))

    def prune(self, device: DeviceUuid, layout: CardLayout) -> None:
        """Remove the entries of instances that do not exist any more, as after a restart of the machine.

        Entries of the operator's layout (``fixed``) are kept.
        """
        standing = {(i.profile, i.start) for i in layout.instances if self.entry(device, i) is not None}
        with self._lock:
            kept = tuple(m for m in self._made if m.device != device or m.fixed or (m.profile, m.start) in standing)
            if kept != self._made:
                self._write_all(kept)

    def _find(self, device: str, profile: str, start: int) -> MadeInstance | None:
        return next((m for m in self._made if (m.device, m.profile, m.start) == (device, profile, start)), None)

    def _write(self, old: MadeInstance | None, new: MadeInstance | None) -> None:
        with self._lock:
            kept = tuple(m for m in self._made if m != old)
            self._write_all(kept if new is None else (*kept, new))

    def _write_all(self, made: tuple[MadeInstance, ...]) -> None:
        if made == self._made:
            return
        try:
            write_durably(self._file, msgspec.json.encode(made))
        except OSError as error:
            raise CalabashError(f"cannot write {self._file}: {error.strerror}", reason=Reason.DISK_FULL) from error
        self._made = made

    def _read(self) -> tuple[MadeInstance, ...]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[MadeInstance, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of MIG instances cannot be read", file=str(self._file), error=str(error))
            return ()
