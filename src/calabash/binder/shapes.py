"""Convert a machine's devices and a ``GpuRequest`` to the scheduler's nodes and shapes. Pure.

The scheduler selects devices by model only. So each device is a model of its own here, named by its UUID, and any
selector of a request becomes an exact set of "models". A vgpu request without a memory amount gets the same fraction of
the memory as of the compute. If the devices have several sizes, such a request has one shape for each size, and the
binder chooses one of these when the request is submitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from calabash.model.device import Device, DeviceUuid, Health, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import MIG_MODE, GpuRequest, ModeName, Slice
from calabash.sched import GpuSpec, NodeSpec, Shape
from calabash.sharing.protocol import Misfit, SharingMode, device_mode
from calabash.sharing.registry import RequestModes, mode_of_device, selector_misfit

MODELS_SHOWN_MAX = 8

UNMANAGED = 10**9  # host resources that the pool does not manage: a million vCPU, a pebibyte


def islands_of(devices: Sequence[Device]) -> list[int]:
    """Return the number of the NVLink island of each device; -1 for a device without peers.

    An island is a set of devices that reach each other by NVLink, directly or through other devices.
    """
    number = {device.uuid: i for i, device in enumerate(devices)}
    island = list(range(len(devices)))

    def root(i: int) -> int:
        while island[i] != i:
            i = island[i]
        return i

    for i, device in enumerate(devices):
        for peer in device.nvlink_peers:
            if peer in number:
                island[max(root(i), root(number[peer]))] = min(root(i), root(number[peer]))
    return [root(i) if device.nvlink_peers else -1 for i, device in enumerate(devices)]


def node_of(name: NodeName, devices: Sequence[Device], *, cpu_milli: int = 0, memory_mib: int = 0) -> NodeSpec:
    """Return the machine as a node of the scheduler on which nothing is allocated.

    Args:
        cpu_milli, memory_mib: host CPUs in 1/1000 and host memory that requests may use.
    """
    specs = [
        GpuSpec(
            model=device.uuid,
            card=device.model,
            memory_mib=device.memory_mib,
            island=island,
            numa=device.numa_node,
            healthy=device.health is Health.HEALTHY,
            mode=mode_of_device(ModeName(device.pinned)),
            geometry=device.mig,
        )
        for device, island in zip(devices, islands_of(devices), strict=True)
    ]
    return NodeSpec(name=name, cpu_milli=cpu_milli, memory_mib=memory_mib, gpus=tuple(specs))


def shapes_of(wanted: RequestModes, devices: Sequence[Device]) -> list[Shape]:
    """Return the shapes that would serve the request.

    There is one shape, or, if the memory of the request depends on the size of the device, one for each size.

    Raises CalabashError: no device is selected, or the request is too large for every device.
    """
    request = wanted.request
    chosen = [d for d in devices if selector_misfit(d, request.selector) is None]
    fitting, misfits = [], []
    for device in chosen:
        mode = wanted.on(device)
        idle = replace(device, health=Health.HEALTHY, mig_instances=())
        answer = wanted.fits(idle, None, (), mode=mode)
        if isinstance(answer, Misfit):
            misfits.append(answer)
        else:
            fitting.append((device, mode, answer))
    if not chosen or len(fitting) < request.count:
        raise _impossible(request, devices, chosen, misfits)
    sizes: dict[Shape, list[DeviceUuid]] = {}
    for device, mode, answer in fitting:
        shape = shape_of(mode, device, answer, request, count=request.count)
        sizes.setdefault(shape, []).append(device.uuid)
    shapes = [
        shape if len(uuids) == len(devices) else replace(shape, models=frozenset(uuids))
        for shape, uuids in sizes.items()
        if len(uuids) >= request.count
    ]
    if not shapes:
        raise _impossible(request, devices, chosen, misfits)
    return shapes


def shape_of(mode: SharingMode, device: Device, part: Slice, request: GpuRequest, *, count: int) -> Shape:
    """Return the scheduler's shape for a request that gets ``count`` slices like ``part`` on devices like this one."""
    charge = mode.charge(device, part, request.policy)
    cut = bool(part.profile) and mode.name == MIG_MODE  # the scheduler places instances, not shares of one
    return Shape(
        gpu_count=count,
        gpu_milli=0 if cut else charge.core_milli,
        gpu_memory_mib=0 if cut else charge.memory_mib,
        gpu_slices=0 if cut else 1,
        gpu_slices_max=0 if cut else charge.slices_max,
        mig_profile=part.profile if cut else "",
        mode=device_mode(mode),
        cpu_milli=request.cpu_milli,
        memory_mib=request.host_memory_mib + count * part.spill_mib,
    )


def host_memory_of(devices: Sequence[Device]) -> int:
    """Return the host memory for spilling in MiB; UNMANAGED if no device allows it."""
    return max((device.spill_mib for device in devices), default=0) or UNMANAGED


def _impossible(
    request: GpuRequest, devices: Sequence[Device], chosen: Sequence[Device], misfits: Sequence[Misfit]
) -> CalabashError:
    if not devices:
        return CalabashError("the machine has no devices", reason=Reason.NO_DEVICES, hint="check calabash doctor")
    if not chosen:
        models = Counter(device.model for device in devices)
        wanted = f": no device is of model {' or '.join(request.selector.models)}" if request.selector.models else ""
        there = ", ".join(f"{model} ({count})" for model, count in models.most_common(MODELS_SHOWN_MAX))
        more = f" and {len(models) - MODELS_SHOWN_MAX} others" if len(models) > MODELS_SHOWN_MAX else ""
        return CalabashError(
            f"none of {len(devices)} devices is selected{wanted}",
            reason=Reason.SELECTOR_MISMATCH,
            hint=f"there are {there}{more}",
        )
    if misfits:
        hint = "ask for less per device"
        if request.mig and misfits[0].reason is Reason.SELECTOR_MISMATCH:
            hint = "see what the cards have: calabash device mig show"
        if misfits[0].reason is Reason.NOT_PERMITTED:
            hint = (
                "an administrator allows it: calabash device set ID --allow-spill on, "
                "or spill = true in pool.toml, [devices]"
            )
        return CalabashError(misfits[0].message, reason=misfits[0].reason, hint=hint)
    return CalabashError(
        f"asked {request.count} devices, the machine has {len(chosen)} that match",
        reason=Reason.TOO_LARGE,
        hint=f"ask for at most {len(chosen)}",
    )
