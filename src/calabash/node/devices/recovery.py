"""Recover cards: reset those that need it and test those that must pass a test.

Steps run one at a time in a separate thread, because a reset takes seconds and a test may hang; the health of other
cards is tracked meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, Text
from calabash.node.devices.device import HealthChange
from calabash.node.devices.inventory import Inventory
from calabash.node.devices.maintenance import RESETTING
from calabash.node.devices.probe import ProbeResult
from calabash.node.health.conditions import HealthEvent, HealthStep

log = structlog.get_logger(__name__)


class RecoveryNode(Protocol):
    """The node whose cards are recovered; ``node.administration.devices`` implements it."""

    def probe(self, driver: GpuDriver, device: Device) -> ProbeResult:
        """Test a card; see ``probe.probe_card``."""
        ...

    def in_use(self, device: DeviceUuid) -> Text:
        """Return a text that names the user of a card; "" if it is idle."""
        ...

    def notify(self, changes: Sequence[HealthChange]) -> None:
        """Report changes of health."""
        ...


class Recovery:
    """Recovery steps of one node.

    Args:
        inventory: the cards with their health.
        clock: the clock.
        node: the node of the cards.
    """

    def __init__(self, inventory: Inventory, clock: Clock, node: RecoveryNode) -> None:
        self._inventory = inventory
        self._clock = clock
        self._node = node
        self._one = threading.Lock()

    def round(self) -> None:
        """Take the steps that are due. A step that is not possible now is logged and retried later."""
        for uuid, step in self._inventory.steps.due(self._clock.monotonic_ns()):
            try:
                if step is HealthStep.TEST:
                    self._test(uuid)
                else:
                    self._reset(uuid)
            except CalabashError as error:
                log.info("a recovery step of a card is postponed", device=uuid, step=step, why=error.message)

    def test(self, uuid: DeviceUuid) -> ProbeResult:
        """Test an idle card now. Raises CalabashError(CONFLICT) if it is in use."""
        with self._one, self._inventory.steps.reserved([uuid], "being tested"):
            self._require_idle(uuid, "tested")
            return self._tried(uuid, idle=True)

    def reset(self, uuid: DeviceUuid) -> None:
        """Reset an idle card now.

        Raises:
            CalabashError: the card is in use, in MIG mode, or its driver refuses the reset.
        """
        with self._one:
            self._reset_held(uuid)

    def _test(self, uuid: DeviceUuid) -> None:
        again_ns = self._clock.monotonic_ns() + int(self._inventory.policy.recovery.test_again_s * 1e9)
        self._inventory.steps.postpone(uuid, test_at_ns=again_ns)
        with self._one, self._inventory.steps.reserved([uuid], "being tested"):
            self._tried(uuid, idle=not self._node.in_use(uuid))

    def _tried(self, uuid: DeviceUuid, *, idle: bool) -> ProbeResult:
        device = self._device(uuid)
        probed = self._node.probe(self._inventory.driver_of(uuid), device)
        if probed.passed and idle:
            probed = self._compared(uuid, probed)
        elif probed.no_room and not idle:
            probed = ProbeResult(passed=True)  # the card answers; its programs leave too little memory for the test
        event = HealthEvent.TEST_PASSED if probed.passed else HealthEvent.TEST_FAILED
        said = "a test passed" if probed.passed else f"a test failed: {probed.why}"
        self._node.notify(self._inventory.health.happened(uuid, event, said))
        return probed

    def _compared(self, uuid: DeviceUuid, probed: ProbeResult) -> ProbeResult:
        """Return the result of a test, changed to failed if a step was too slow.

        A step may take at most ``test_slowest`` times its shortest earlier duration on this card, because a damaged
        card may still compute correct results, but slowly.
        """
        known = self._inventory.health.entry(uuid).figures
        slowest = self._inventory.policy.recovery.test_slowest
        for name, value in probed.figures.items():
            before = known.get(name)
            if before is not None and value > before * slowest:
                why = f"{name} took {value:.0f} us, {value / before:.1f} times its own {before:.0f} us"
                return ProbeResult(passed=False, context_bytes=probed.context_bytes, why=why, figures=probed.figures)
        best = {name: min(value, known.get(name, value)) for name, value in probed.figures.items()}
        self._inventory.health.note(uuid, figures={**known, **best})
        return probed

    def _reset(self, uuid: DeviceUuid) -> None:
        again_ns = self._clock.monotonic_ns() + int(self._inventory.policy.recovery.reset_again_s * 1e9)
        self._inventory.steps.postpone(uuid, reset_at_ns=again_ns)
        with self._one:
            try:
                self._reset_held(uuid)
            except CalabashError as error:
                why = Message("it cannot be reset: {why}", why=error.message_text)
                self._node.notify(self._inventory.health.happened(uuid, HealthEvent.RESET_REFUSED, why))

    def _reset_held(self, uuid: DeviceUuid) -> None:
        device = self._device(uuid)
        if device.mig_enabled:
            raise CalabashError(
                f"device {device.index} is in MIG mode, a reset would destroy its instances",
                reason=Reason.CONFLICT,
                hint=f"calabash device mode {device.index} vgpu, then reset it",
            )
        together = [uuid, *device.reset_peers]
        with self._inventory.steps.reserved(together, RESETTING):
            self._require_idle(uuid, "reset")
            for peer in device.reset_peers:
                self._require_idle(peer, f"reset with device {device.index}, which NVLink joins it to")
            self._inventory.driver_of(uuid).reset(uuid)
            self._node.notify(self._inventory.health.happened(uuid, HealthEvent.RESET_DONE, "it was reset"))

    def _require_idle(self, uuid: DeviceUuid, to_be: str) -> None:
        who = self._node.in_use(uuid)
        if who:
            index = self._device(uuid).index
            raise CalabashError(
                Message(
                    "device {device} cannot be {to_be}: it is used by {users}", device=index, to_be=to_be, users=who
                ),
                reason=Reason.CONFLICT,
                hint=f"drain it first: calabash device drain {index} --evict",
            )

    def _device(self, uuid: DeviceUuid) -> Device:
        return next(d for d in self._inventory.devices() if d.uuid == uuid)
