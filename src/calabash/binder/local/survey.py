"""Devices and unmanaged memory as the node agent reports them, for the scheduler."""

from __future__ import annotations

from dataclasses import replace

from calabash.binder.local.unmanaged_memory import UnmanagedDeviceMemory
from calabash.model.device import Device, DeviceUuid, Health
from calabash.node.agent import NodeAgent
from calabash.node.audit.process_census import describe_process
from calabash.node.snapshot import DeviceSnapshot
from calabash.sharing.registry import mode_of_device


def read_devices(agent: NodeAgent) -> tuple[list[Device], dict[DeviceUuid, UnmanagedDeviceMemory]]:
    """Return all devices, and the memory that unmanaged processes use on each.

    A device is returned as DRAINING, so that it gets no new allocations, if the agent closes it because of an unmanaged
    process or an orphaned allocation, or if it is still used in another mode than the one to which it is pinned.
    """
    found = agent.devices()
    devices = [
        d.device if d.takes_work and not _leaves_its_mode(d) else replace(d.device, health=Health.DRAINING)
        for d in found
    ]
    return devices, {d.device.uuid: _foreign(d) for d in found if d.foreign_mib}


def _leaves_its_mode(state: DeviceSnapshot) -> bool:
    """Return True if the device is still used in another mode than the one to which an administrator has pinned it."""
    kept = state.device.pinned
    return bool(kept) and state.mode is not None and kept not in (state.mode, mode_of_device(state.mode))


def _foreign(state: DeviceSnapshot) -> UnmanagedDeviceMemory:
    """Return the unmanaged memory of a device, and which processes would have to end to free it."""
    names = "; ".join(describe_process(process) for process in state.unmanaged[:3])
    more = f" and {len(state.unmanaged) - 3} more" if len(state.unmanaged) > 3 else ""
    remedy = f"end the processes without an allocation on device {state.device.index}: {names}{more}"
    return UnmanagedDeviceMemory(memory_mib=state.foreign_mib, remedy=remedy)
