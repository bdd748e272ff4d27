"""What the agent sees of the devices, as the scheduler is to take it."""

from __future__ import annotations

from dataclasses import replace

from calabash.agent.census import described
from calabash.agent.node import NodeAgent
from calabash.agent.snapshot import DeviceSnapshot
from calabash.binder.beside import Foreign
from calabash.model.device import Device, DeviceUuid, Health


def surveyed(agent: NodeAgent) -> tuple[list[Device], dict[DeviceUuid, Foreign]]:
    """All devices, where one that somebody unknown is on may take no new work, and what strangers hold."""
    found = agent.devices()
    devices = [d.device if d.takes_work else replace(d.device, health=Health.DRAINING) for d in found]
    return devices, {d.device.uuid: _foreign(d) for d in found if d.foreign_mib}


def _foreign(state: DeviceSnapshot) -> Foreign:
    """What strangers hold of a device, and what would give it back."""
    whose = "; ".join(described(stranger) for stranger in state.strangers[:3])
    more = f" and {len(state.strangers) - 3} more" if len(state.strangers) > 3 else ""
    remedy = f"would have more room without who has no slice of device {state.device.index}: {whose}{more}"
    return Foreign(memory_mib=state.foreign_mib, remedy=remedy)
