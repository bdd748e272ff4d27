"""Subscribers are called for every change of a card's health, at once and for nothing else."""

from __future__ import annotations

from typing import Any, cast

from calabash.model.device import DeviceUuid, Health
from calabash.node.devices.device import HealthChange
from calabash.node.devices.health_notices import HealthNotifier
from calabash.node.events import Events
from calabash_testing.clock import VirtualClock


def test_subscriber_is_called_for_each_change_of_health() -> None:
    none = cast("Any", None)
    health_notifier = HealthNotifier(none, Events(none, VirtualClock()), none, list)
    heard: list[str] = []
    health_notifier.subscribe(lambda: heard.append("change"))
    for before, after in ((Health.HEALTHY, Health.DRAINING), (Health.DRAINING, Health.HEALTHY)):
        health_notifier.notify(
            [HealthChange(device=DeviceUuid("g"), before=before, after=after, cause="xid 48", notify_tenants=True)]
        )
    health_notifier.notify([])
    assert heard == ["change", "change"]
