"""Translate the spec of a claim to one ``GpuRequest``, before devices are allocated to the claim.

Pods with claims can then wait in the same queues as other pods. The allocation of a claim is read by ``allocated``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from calabash.adapters.kube.objects.claims import (
    AllocatedConfig,
    CapacityRequirements,
    DeviceClass,
    DeviceConfig,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from calabash.kubernetes.claims.capacity import CORES, MEMORY, STEP_MIB, reserve_mib
from calabash.kubernetes.claims.device_names import DRIVER, OBSERVED
from calabash.kubernetes.claims.expressions import Demands, demands_of
from calabash.kubernetes.claims.parameters import SliceParameters, parameters_for
from calabash.kubernetes.objects.quantity import mib_of, parse_quantity, whole
from calabash.model.compute import with_compute
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import MIG_MODE, MPS_MODE, VF_MODE, ComputePolicy, GpuRequest, Isolation, ModeName, Selector
from calabash.sharing.brokered import MODE as BROKERED
from calabash.sharing.exclusive import MODE as EXCLUSIVE
from calabash.sharing.timeslice import MODE as TIMESLICE
from calabash.sharing.vgpu import MODE as VGPU

REQUESTS_MAX = 32  # limit of the API server
_NVIDIA = "gpu.nvidia.com"
_NVIDIA_TYPES = {"gpu": EXCLUSIVE.name, "mig": MIG_MODE, "vfio": VF_MODE}
_SHARED = frozenset({VGPU.name, TIMESLICE.name, MPS_MODE})
_MODES = frozenset({EXCLUSIVE.name, MIG_MODE, VF_MODE}) | _SHARED

_Way = ExactDeviceRequest | DeviceSubRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One request of a claim for devices of this driver.

    Args:
        name: name as in the results of an allocation: ``REQUEST`` or ``REQUEST/SUBREQUEST``.
        way: the request, or the chosen one of its alternatives.
        demands: conditions in the selectors of the request and of its class.
        parameters: driver parameters that apply to the request.
    """

    name: str
    way: _Way
    demands: Demands
    parameters: SliceParameters


def request_of(spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]) -> GpuRequest | None:
    """Return the request of a claim; None if it asks for no device of this driver, or only for admin access.

    If a request of the claim has several alternatives, the first one for devices of this driver is used.

    Args:
        spec: the spec of the claim.
        classes: the device classes by name.

    Raises:
        CalabashError: NOT_FOUND if a class does not exist; UNSUPPORTED, MODE_CONFLICT or BAD_REQUEST if the number or
            the amounts of the claim's devices cannot be determined.
    """
    if len(spec.devices.requests) > REQUESTS_MAX:
        raise CalabashError(f"{len(spec.devices.requests)} requests in one claim", hint=f"at most {REQUESTS_MAX}")
    asks = [ask for one in spec.devices.requests if (ask := _ask(one, spec, classes)) is not None]
    found = [_request(ask) for ask in asks]
    if not found:
        return None
    first = found[0]
    alike = {replace(one, count=1, selector=Selector()) for one in found}
    if len(alike) > 1:
        raise CalabashError(
            f"requests {', '.join(ask.name for ask in asks)} differ in mode or amounts",
            reason=Reason.MODE_CONFLICT,
            hint="one claim for each",
        )
    same = all(one.selector == first.selector for one in found)
    count = sum(one.count for one in found)
    return replace(first, count=count, selector=first.selector if same else Selector())


def _ask(request: DeviceRequest, spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]) -> _Ask | None:
    ways: list[tuple[str, _Way]] = [(f"{request.name}/{way.name}", way) for way in request.first_available]
    if request.exactly is not None:
        ways = [(request.name, request.exactly)]
    for name, way in ways:
        found = classes.get(way.device_class_name)
        if found is None:
            raise CalabashError(
                f"request {name}: device class {way.device_class_name[:253]} does not exist",
                reason=Reason.NOT_FOUND,
                hint="kubectl get deviceclasses",
            )
        demands = _demands(found, way.selectors)
        if demands.driver != DRIVER or (isinstance(way, ExactDeviceRequest) and way.admin_access):
            continue
        configs = [
            *_allocated_configs(found.spec.config, "FromClass", name),
            *_allocated_configs(spec.devices.config, "FromClaim", name),
        ]
        return _Ask(name=name, way=way, demands=demands, parameters=parameters_for(name, configs))
    return None


def _demands(found: DeviceClass, more: Iterable[DeviceSelector]) -> Demands:
    return demands_of(one.cel.expression for one in (*found.spec.selectors, *more) if one.cel is not None)


def _allocated_configs(configs: Iterable[DeviceConfig], source: str, request: str) -> list[AllocatedConfig]:
    """Return configurations in the form that they have in an allocation.

    A configuration of the claim that names no request applies to all requests. A configuration of a device class
    (``source`` FromClass) names no request, but applies only to those of the class; so ``request`` is added to it.
    """
    names = (request,) if source == "FromClass" else ()
    return [AllocatedConfig(source=source, requests=one.requests or names, opaque=one.opaque) for one in configs]


def _request(ask: _Ask) -> GpuRequest:
    try:
        return _translated(ask)
    except CalabashError as error:
        raise CalabashError(f"request {ask.name}: {error.message}", reason=error.reason, hint=error.hint) from error


def _translated(ask: _Ask) -> GpuRequest:
    way, demands, parameters = ask.way, ask.demands, ask.parameters
    if way.allocation_mode == "All":
        raise CalabashError(
            "all devices of a node are not a number of devices", reason=Reason.UNSUPPORTED, hint="say how many"
        )
    capacity = _amounts(way.capacity)
    mode, profile = _mode(demands, capacity), demands.text((DRIVER, "profile"), (_NVIDIA, "profile"))
    model = demands.text((DRIVER, "model"), (_NVIDIA, "productName"))
    base = GpuRequest(
        count=way.count or 1,
        selector=Selector(
            models=(model,) if model else (),
            memory_mib_min=demands.nominal_mib_min,
            reported_mib_min=demands.reported_mib_min,
        ),
        policy=parameters.policy or ComputePolicy.FIXED,
        isolation=parameters.isolation if parameters.isolation is not None else Isolation.COOPERATIVE,
    )
    if mode == MIG_MODE:
        if not profile:
            raise CalabashError(
                "it names no MIG profile", hint=f'a selector device.attributes["{DRIVER}"].profile == "1g.10gb"'
            )
        return replace(base, mig=profile)
    if mode not in _SHARED:
        brokered = base.isolation is Isolation.BROKERED and mode == EXCLUSIVE.name
        return replace(base, mode=BROKERED.name if brokered else mode)
    return _shared(replace(base, mode=mode), capacity, parameters)


def _shared(base: GpuRequest, capacity: Mapping[str, int], parameters: SliceParameters) -> GpuRequest:
    """Return the request for a share of each device, in the amounts that the allocator of Kubernetes would allocate.

    Args:
        base: the request without amounts.
        capacity: requested memory in MiB and cores in percent, by name; a missing amount was not requested.
        parameters: driver parameters of the request.
    """
    memory_mib, cores = capacity.get(MEMORY), capacity.get(CORES, 0)
    if memory_mib is not None:
        memory_mib = _consumed_mib(memory_mib, base.mode)
    policy = parameters.policy
    if base.mode != VGPU.name:
        cores, policy = cores if base.mode == MPS_MODE else 0, ComputePolicy.FIXED
    spill_mib = parameters.spill_mib or 0
    if spill_mib and memory_mib is None:
        raise CalabashError("it spills and asks for no memory", hint="say how much of the card in capacity.requests")
    amounts = replace(
        base,
        mode=BROKERED.name if base.isolation is Isolation.BROKERED and base.mode == VGPU.name else base.mode,
        memory_mib=None if memory_mib is None else memory_mib + spill_mib,
        spill_mib=spill_mib,
    )
    # Every share of a shared device has an amount of memory; the allocator adds it if the claim names none.
    return with_compute(amounts, core_percent=cores or None, policy=policy, part=True)


def _consumed_mib(asked_mib: int, mode: ModeName) -> int:
    """Return the memory in MiB that a slice has after the allocator has rounded up the request; see ``capacity``."""
    reserve = reserve_mib(mode)
    least = reserve + STEP_MIB if reserve else 0
    return max(least + -(-max(0, asked_mib - least) // STEP_MIB) * STEP_MIB - reserve, 1)


def _mode(demands: Demands, capacity: Mapping[str, int]) -> ModeName:
    said = demands.text((DRIVER, "mode"))
    if said == OBSERVED:
        raise CalabashError(
            "it asks to look at cards, which administrators may", hint="say adminAccess: true in the request"
        )
    if said and said not in _MODES:
        raise CalabashError(f"mode {said[:64]!r} is not known", hint=f"one of: {', '.join(sorted(_MODES))}")
    theirs = _NVIDIA_TYPES.get(demands.text((_NVIDIA, "type")))
    if said or theirs:
        return ModeName(said or theirs or "")
    if demands.text((DRIVER, "profile"), (_NVIDIA, "profile")):
        return MIG_MODE
    return VGPU.name if capacity else EXCLUSIVE.name


def _amounts(capacity: CapacityRequirements | None) -> dict[str, int]:
    """Return the requested memory in MiB and the requested cores in percent, of each device, by name."""
    found: dict[str, int] = {}
    for name, written in (capacity.requests if capacity is not None else {}).items():
        what = name.removeprefix(f"{DRIVER}/")
        if what == MEMORY:
            found[MEMORY] = mib_of(parse_quantity(written, what=what), what=what)
        elif what == CORES:
            found[CORES] = whole(parse_quantity(written, what=what), what=what)
    return found
