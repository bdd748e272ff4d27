"""Which MIG instances are ours: a small file in the pool's home, written before an instance is made.

Whose an instance is now follows from the journal; that a free one may be destroyed for another shape follows from here.
Whatever stands on a card and is not in the book was there before us, and stays. An entry without MIG devices is one that
was about to be made when the pool before this one died: what stands at its place is ours.
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
    """An instance of ours. ``fixed``: a layout that somebody wrote has it, so it is kept, and made again when it is gone."""

    device: str
    profile: str
    start: int
    uuids: tuple[str, ...] = ()
    fixed: bool = False


class MigBook:
    """All instances of ours on this node. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._made: tuple[MadeInstance, ...] = self._read()

    def entry(self, device: DeviceUuid, instance: GpuInstance) -> MadeInstance | None:
        """What is known of an instance that stands on a card; None when it is not ours."""
        made = self._find(device, instance.profile, instance.start)
        uuids = {part.uuid for part in instance.parts}
        return made if made is not None and (not made.uuids or not uuids or uuids & set(made.uuids)) else None

    def fixed(self, device: DeviceUuid) -> list[MadeInstance]:
        """Those of the layout that somebody wrote for this card."""
        return [made for made in self._made if made.device == device and made.fixed]

    def about_to_make(self, device: DeviceUuid, profile: str, start: int) -> None:
        """Raises CalabashError(DISK_FULL); then nothing must be made."""
        known = self._find(device, profile, start)
        fixed = known is not None and known.fixed
        self._write(known, MadeInstance(device=device, profile=profile, start=start, fixed=fixed))

    def has_part(self, device: DeviceUuid, instance: GpuInstance, uuid: DeviceUuid) -> None:
        """A MIG device was made in an instance of ours."""
        known = self.entry(device, instance)
        if known is not None:
            self._write(known, msgspec.structs.replace(known, uuids=(*known.uuids, uuid)))

    def destroyed(self, device: DeviceUuid, profile: str, start: int) -> None:
        """It is gone; one that is fixed is kept in mind."""
        known = self._find(device, profile, start)
        if known is not None:
            self._write(known, msgspec.structs.replace(known, uuids=()) if known.fixed else None)

    def fix(self, device: DeviceUuid, places: Iterable[tuple[str, int]]) -> None:
        """From now on these places, and no others, are the card's layout."""
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
            self._store((*others, *kept, *new))

    def prune(self, device: DeviceUuid, layout: CardLayout) -> None:
        """Forget what does not stand any more, the machine may have been restarted; layouts are kept."""
        standing = {(i.profile, i.start) for i in layout.instances if self.entry(device, i) is not None}
        with self._lock:
            kept = tuple(m for m in self._made if m.device != device or m.fixed or (m.profile, m.start) in standing)
            if kept != self._made:
                self._store(kept)

    def _find(self, device: str, profile: str, start: int) -> MadeInstance | None:
        return next((m for m in self._made if (m.device, m.profile, m.start) == (device, profile, start)), None)

    def _write(self, old: MadeInstance | None, new: MadeInstance | None) -> None:
        with self._lock:
            kept = tuple(m for m in self._made if m != old)
            self._store(kept if new is None else (*kept, new))

    def _store(self, made: tuple[MadeInstance, ...]) -> None:
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
            log.error("which MIG instances are ours is not known", file=str(self._file), error=str(error))
            return ()
