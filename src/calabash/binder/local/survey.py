"""What the agent sees of the devices, as the scheduler is to take it."""

from __future__ import annotations

from dataclasses import replace

from calabash.binder.local.unmanaged_memory import Foreign
from calabash.model.device import Device, DeviceUuid, Health
from calabash.node.agent import NodeAgent
from calabash.node.audit.process_census import describe_process
from calabash.node.snapshot import DeviceSnapshot
from calabash.sharing.registry import mode_of_device


def surveyed(agent: NodeAgent) -> tuple[list[Device], dict[DeviceUuid, Foreign]]:
    """All devices, and what strangers hold. One that somebody unknown is on takes no new work, and neither does one that is
    used in another mode than it is kept in by now."""
    found = agent.devices()
    devices = [
        d.device if d.takes_work and not _leaves_its_mode(d) else replace(d.device, health=Health.DRAINING)
        for d in found
    ]
    return devices, {d.device.uuid: _foreign(d) for d in found if d.foreign_mib}


def _leaves_its_mode(state: DeviceSnapshot) -> bool:
    """Whether what runs on it is of another mode than its operator has said since."""
    kept = state.device.pinned
    return bool(kept) and state.mode is not None and kept not in (state.mode, mode_of_device(state.mode))


def _foreign(state: DeviceSnapshot) -> Foreign:
    """What strangers hold of a device, and what would give it back."""
    whose = "; ".join(describe_process(stranger) for stranger in state.unmanaged[:3])
    more = f" and {len(state.unmanaged) - 3} more" if len(state.unmanaged) > 3 else ""
    remedy = f"would have more room without who has no slice of device {state.device.index}: {whose}{more}"
    return Foreign(memory_mib=state.foreign_mib, remedy=remedy)
