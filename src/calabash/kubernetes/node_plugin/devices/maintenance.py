"""Single cards as an administrator wants them: what the spec of the node's own ``GpuNode`` says of each is carried out.

Theory of operation. A drain is a state and is followed: a card is drained as long as the spec says so. To test a card, to
reset it and to put it back are orders: each has an id of its own and is carried out once, and what became of it is told
with the card. Ids are written down before anything is done, so that an agent that starts again does nothing twice. Orders
take seconds, so a thread of their own carries them out, one after the other; drains are followed before them.
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
    GpuNodeCare,
    GpuNodeOrder,
    GpuNodeOutcome,
)
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.probe import ProbeResult
from calabash.node.health.store import CardEntry

LOOK_EVERY_S = 5.0
_TEXT_MAX = 1024

log = structlog.get_logger(__name__)


class CaredFor(Protocol):
    """What is asked of ``node.administration.devices``."""

    def entry(self, device: Device) -> CardEntry: ...

    def drain(self, device: Device, *, why: str, evict_after_s: float | None) -> None: ...

    def undrain(self, device: Device) -> None: ...

    def test(self, device: Device) -> ProbeResult: ...

    def reset(self, device: Device) -> None: ...


class CardCare:
    """Of one node.

    Args:
        devices: its cards.
        file: where it is kept which orders were begun.
        told: called when an outcome is to be told.
    """

    def __init__(
        self, care: CaredFor, devices: Callable[[], Sequence[Device]], file: Path, *, told: Callable[[], None]
    ) -> None:
        self._care = care
        self._devices = devices
        self._file = file
        self._told = told
        self._wanted: Mapping[str, GpuNodeCare] | None = None
        self._outcomes = _read(file)
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="card-care", daemon=True)

    def changed(self, change: MirrorChange[GpuNode]) -> None:
        """The mirror of the node's ``GpuNode`` saw a change. An object that is gone says nothing."""
        if change.after is not None and change.after.spec.devices != self._wanted:
            self._wanted = change.after.spec.devices
            self._news.set()

    def outcomes(self) -> Mapping[str, GpuNodeOutcome]:
        """What became of the last order for each card, by UUID."""
        return self._outcomes

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """An order that is being carried out ends first, within the time of a test."""
        self._stopping = True
        self._news.set()
        self._thread.join()

    def follow(self) -> None:
        """Make the cards so, and carry out what has not been begun."""
        wanted = self._wanted
        if wanted is None:
            return
        cards = [(device, wanted.get(device.uuid, GpuNodeCare())) for device in self._devices()]
        for device, one in cards:
            self._drain(device, one)
        for device, one in cards:
            before = self._outcomes.get(device.uuid)
            if one.order is not None and not self._stopping and (before is None or before.id != one.order.id):
                self._carry_out(device, one.order)

    def _run(self) -> None:
        while not self._stopping:
            self._news.wait(LOOK_EVERY_S)
            self._news.clear()
            try:
                self.follow()
            except CalabashError as error:
                log.warning("what is wanted of a card could not be done", error=error.message)
            except Exception:
                log.exception("what is wanted of a card could not be done")

    def _drain(self, device: Device, wanted: GpuNodeCare) -> None:
        entry = self._care.entry(device)
        if wanted.drained and (not entry.condition.drained or entry.drained_why != wanted.reason):
            self._care.drain(device, why=wanted.reason, evict_after_s=None)
        elif not wanted.drained and entry.condition.drained:
            self._care.undrain(device)

    def _carry_out(self, device: Device, order: GpuNodeOrder) -> None:
        self._tell(device, order, BEGUN, "")
        try:
            state, said = self._done(device, order.what)
        except CalabashError as error:
            state, said = FAILED, str(error)
        self._tell(device, order, state, said)

    def _done(self, device: Device, what: str) -> tuple[str, str]:
        match what:
            case "undrain":
                self._care.undrain(device)
                return DONE, "it goes back to work when it has passed a test"
            case "reset":
                self._care.reset(device)
                return DONE, "it was reset"
            case "test":
                found = self._care.test(device)
                figures = ", ".join(f"{name} {value:.0f} us" for name, value in sorted(found.figures.items()))
                said = f"passed: {figures}" if found.passed else f"the test failed: {found.why}"
                return DONE if found.passed else FAILED, said
        raise CalabashError(f"what {what[:32]!r} means is not known", reason=Reason.BAD_REQUEST)

    def _tell(self, device: Device, order: GpuNodeOrder, state: str, said: str) -> None:
        """Raises CalabashError when it cannot be written down; then nothing is done either."""
        outcome = GpuNodeOutcome(id=order.id, what=order.what, state=state, message=said[:_TEXT_MAX])
        outcomes = {**self._outcomes, device.uuid: outcome}
        try:
            write_durably(self._file, msgspec.json.encode(outcomes))
        except OSError as error:
            raise CalabashError(f"cannot write {self._file}: {error.strerror}", reason=Reason.DISK_FULL) from error
        self._outcomes = outcomes
        self._told()


def _read(file: Path) -> dict[str, GpuNodeOutcome]:
    """What an earlier agent has begun; of what it did not end nobody knows more than that."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, GpuNodeOutcome])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.error("which orders for cards were begun is not known", error=str(error))
        return {}
    why = "the agent was started again meanwhile; see how the card fares, and say it again"
    return {
        uuid: msgspec.structs.replace(one, state=FAILED, message=why) if one.state == BEGUN else one
        for uuid, one in found.items()
    }
