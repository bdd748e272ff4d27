"""Maintenance of single devices as the spec of the node's ``GpuNode`` orders it: drain, test, reset and undrain.

Theory of operation. A drain is a state: a device is drained as long as the spec says so. Test, reset and undrain are
orders: each has its own ID and is carried out once, and its outcome is reported with the device. The ID is written to
disk before the order is carried out, so that a restarted agent does not carry it out again. An order takes seconds.
Orders are therefore carried out one after the other by a separate thread, which applies the drains first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from calabash.adapters.host.files import write_durably
from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.resources import (
    BEGUN,
    DONE,
    FAILED,
    GpuNode,
    GpuNodeDeviceSpec,
    GpuNodeOrder,
    GpuNodeOutcome,
)
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.probe import ProbeResult
from calabash.node.health.store import CardEntry

POLL_S = 5.0
_TEXT_MAX = 1024

log = structlog.get_logger(__name__)


class DeviceOperations(Protocol):
    """The operations on devices that maintenance needs; ``node.administration.devices`` implements them."""

    def entry(self, device: Device) -> CardEntry: ...

    def drain(self, device: Device, *, why: str, evict_after_s: float | None) -> None: ...

    def undrain(self, device: Device) -> None: ...

    def test(self, device: Device) -> ProbeResult: ...

    def reset(self, device: Device) -> None: ...


class DeviceMaintenance:
    """Apply drains and carry out orders for the devices of one node.

    Args:
        operations: carries out drains and orders.
        devices: returns the devices of the node.
        file: JSON file in which the outcomes of orders are kept.
        told: called when the outcome of an order has changed, so that it is reported.
    """

    def __init__(
        self,
        operations: DeviceOperations,
        devices: Callable[[], Sequence[Device]],
        file: Path,
        *,
        told: Callable[[], None],
    ) -> None:
        self._operations = operations
        self._devices = devices
        self._file = file
        self._told = told
        self._wanted: Mapping[str, GpuNodeDeviceSpec] | None = None
        self._outcomes = _read(file)
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="card-care", daemon=True)

    def changed(self, change: MirrorChange[GpuNode]) -> None:
        """Note the new spec of the node's ``GpuNode`` and let the thread apply it. A deleted object changes nothing."""
        if change.after is not None and change.after.spec.devices != self._wanted:
            self._wanted = change.after.spec.devices
            self._news.set()

    def outcomes(self) -> Mapping[str, GpuNodeOutcome]:
        """Return the outcome of the last order of each device that had one, by the device's UUID."""
        return self._outcomes

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the order in progress, which can take as long as the test of a device."""
        self._stopping = True
        self._news.set()
        self._thread.join()

    def follow(self) -> None:
        """Apply the drains of the spec, and carry out the orders that have not been begun."""
        wanted = self._wanted
        if wanted is None:
            return
        cards = [(device, wanted.get(device.uuid, GpuNodeDeviceSpec())) for device in self._devices()]
        for device, one in cards:
            self._drain(device, one)
        for device, one in cards:
            before = self._outcomes.get(device.uuid)
            if one.order is not None and not self._stopping and (before is None or before.id != one.order.id):
                self._carry_out(device, one.order)

    def _run(self) -> None:
        while not self._stopping:
            self._news.wait(POLL_S)
            self._news.clear()
            try:
                self.follow()
            except CalabashError as error:
                log.warning("cannot carry out the maintenance of a device", error=error.message)
            except Exception:
                log.exception("cannot carry out the maintenance of a device")

    def _drain(self, device: Device, wanted: GpuNodeDeviceSpec) -> None:
        entry = self._operations.entry(device)
        if wanted.drained and (not entry.condition.drained or entry.drained_why != wanted.reason):
            self._operations.drain(device, why=wanted.reason, evict_after_s=None)
        elif not wanted.drained and entry.condition.drained:
            self._operations.undrain(device)

    def _carry_out(self, device: Device, order: GpuNodeOrder) -> None:
        self._write_outcome(device, order, BEGUN, "")
        try:
            state, said = self._done(device, order.what)
        except CalabashError as error:
            state, said = FAILED, str(error)
        self._write_outcome(device, order, state, said)

    def _done(self, device: Device, what: str) -> tuple[str, str]:
        match what:
            case "undrain":
                self._operations.undrain(device)
                return DONE, "the device is undrained; it is used again when it passes a test"
            case "reset":
                self._operations.reset(device)
                return DONE, "the device was reset"
            case "test":
                found = self._operations.test(device)
                figures = ", ".join(f"{name} {value:.0f} us" for name, value in sorted(found.figures.items()))
                said = f"passed: {figures}" if found.passed else f"the test failed: {found.why}"
                return DONE if found.passed else FAILED, said
        raise CalabashError(f"order {what[:32]!r} is not known", reason=Reason.BAD_REQUEST)

    def _write_outcome(self, device: Device, order: GpuNodeOrder, state: str, said: str) -> None:
        """Write the outcome of an order to disk.

        Args:
            state: state of the order, as in the status of the ``GpuNode``.
            said: explanation for the administrator; cut if it is long.

        Raises:
            CalabashError: DISK_FULL if it cannot be written. An order whose beginning cannot be written is not carried
                out.
        """
        outcome = GpuNodeOutcome(id=order.id, what=order.what, state=state, message=said[:_TEXT_MAX])
        outcomes = {**self._outcomes, device.uuid: outcome}
        try:
            write_durably(self._file, msgspec.json.encode(outcomes))
        except OSError as error:
            raise CalabashError(f"cannot write {self._file}: {error.strerror}", reason=Reason.DISK_FULL) from error
        self._outcomes = outcomes
        self._told()


def _read(file: Path) -> dict[str, GpuNodeOutcome]:
    """Read the outcomes that an earlier agent process wrote. Orders that it began and did not end count as failed."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, GpuNodeOutcome])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.error("cannot read the outcomes of orders for devices", error=str(error))
        return {}
    why = "the agent restarted before the order ended; check the state of the device, and give the order again"
    return {
        uuid: msgspec.structs.replace(one, state=FAILED, message=why) if one.state == BEGUN else one
        for uuid, one in found.items()
    }
