"""Faults that NVIDIA's driver logged earlier: XIDs in the kernel log of this boot, or a simulated node's last XIDs.

The log names a card by its PCI address. Lines about a MIG instance are skipped, because they do not say which one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from calabash.adapters.gpu import sim
from calabash.adapters.gpu.past_faults import PastFault
from calabash.adapters.gpu.protocol import DeviceEvent, EventKind
from calabash.model.device import Device, DeviceUuid

KERNEL_LOG = Path("/dev/kmsg")
XID_LOST = 79

_LOG_BYTES_MAX = 64 << 20
_RECORD_BYTES = 8192
_LINE = re.compile(
    rb"\d+,\d+,(?P<us>\d+),[^;]*;NVRM: Xid \(PCI:(?P<domain>[0-9a-fA-F]+):(?P<bus>[0-9a-fA-F]+):(?P<slot>[0-9a-fA-F]+)"
    rb"(?:\.\d)?\): (?P<code>\d+)"
)


class NvidiaPast:
    """Implementation of ``FaultMemory`` for the cards that ``devices`` lists.

    Args:
        simulated: state file of a simulated node; None to read the kernel log.
    """

    def __init__(
        self, simulated: Path | None, devices: Callable[[], Iterable[Device]], *, log: Path = KERNEL_LOG
    ) -> None:
        self._simulated = simulated
        self._devices = devices
        self._log = log

    def faults(self) -> tuple[PastFault, ...]:
        """Implement ``FaultMemory.faults``."""
        if self._simulated is not None:
            return _of_simulation(self._simulated)
        by_place = {_place(device.pci_bus_id): device.uuid for device in self._devices()}
        booted_s = time.time() - time.monotonic()
        found = []
        for line in _lines(self._log):
            match = _LINE.match(line)
            if match is None:
                continue
            place = tuple(int(match[name], 16) for name in ("domain", "bus", "slot"))
            uuid = by_place.get(place)
            if uuid is not None:
                found.append(_fault(uuid, int(match["code"]), booted_s + int(match["us"]) / 1e6))
        return tuple(found)


def _fault(uuid: DeviceUuid, code: int, at_s: float) -> PastFault:
    kind = EventKind.LOST if code == XID_LOST else EventKind.XID
    return PastFault(event=DeviceEvent(uuid=uuid, kind=kind, code=code), at_s=at_s)


def _of_simulation(state: Path) -> tuple[PastFault, ...]:
    node = sim.show_node(sim.NodeFile(name=state.parent.name, state=state))
    found = [
        _fault(DeviceUuid(device.uuid), xid.xid, xid.time_ns / 1e9)
        for device in node.devices
        for xid in device.xids
        if xid.instance < 0
    ]
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _place(bus_id: str) -> tuple[int, ...]:
    """Return domain, bus and slot of an ID like ``00000000:3B:00.0``; () if it is malformed."""
    try:
        return tuple(int(part, 16) for part in bus_id.partition(".")[0].split(":"))
    except ValueError:
        return ()


def _lines(log: Path) -> Iterator[bytes]:
    """Yield the records of the kernel log from its beginning; none if this process may not read it."""
    try:
        file = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    left = _LOG_BYTES_MAX
    rest = b""
    try:
        while left > 0:
            try:
                chunk = os.read(file, _RECORD_BYTES)  # the kernel returns one record
            except BrokenPipeError:
                continue  # the record was overwritten before it was read
            except OSError:
                break
            if not chunk:
                break
            left -= len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
    finally:
        os.close(file)
