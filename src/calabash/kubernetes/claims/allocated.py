"""Translate the allocation of a claim to the slices that the agent of its node grants.

The allocation is in the status of the claim. A scheduler writes it, but so can any user who may write the status of
claims. It is therefore checked as strictly as the plan of a pod: a device that this node does not have, or an amount in
which the device is not offered, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calabash.adapters.kube.objects.claims import AllocatedDevice, ResourceClaim
from calabash.kubernetes.claims.capacity import CORES, MEMORY, SLICES, consumed, consumed_mib, reserve_mib
from calabash.kubernetes.claims.device_names import DRIVER, OBSERVED, ClaimDevice, claim_devices
from calabash.kubernetes.claims.parameters import SliceParameters, parameters_for
from calabash.kubernetes.objects.plan import PlannedSlice
from calabash.model.device import Device, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import MIG_MODE, MPS_MODE, ComputePolicy, Isolation, ModeName, Placement
from calabash.sharing.brokered import MODE as BROKERED
from calabash.sharing.exclusive import MODE as EXCLUSIVE
from calabash.sharing.timeslice import MODE as TIMESLICE
from calabash.sharing.vgpu import MODE as VGPU
from calabash.sharing.vgpu import best_effort_percent

RESULTS_MAX = 32  # limit of the API server
_TEXT_MAX = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """The devices of this node that are allocated to one request of a claim.

    Args:
        name: name of the request in the allocation: ``REQUEST`` or ``REQUEST/SUBREQUEST``.
        pool: name of the ResourceSlices' pool, which is the name of the node.
        devices: device names in the allocation.
        share_ids: the share ID of each device in the allocation; "" for devices that are not shared.
        slices: the slices that the devices stand for, each on a different card.
    """

    name: str
    pool: str
    devices: tuple[str, ...]
    share_ids: tuple[str, ...]
    slices: tuple[PlannedSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """The slices that the agent grants for a claim in one allocation. All have the same sharing mode and the same size.

    Args:
        uid, namespace, name: identity of the claim object.
        mode: sharing mode of the slices.
        policy: compute policy of the slices.
        requests: the requests of the claim with their slices.
        admin_access: True if the claim only observes the devices and is granted no slice. ``mode`` is then "", and the
            slices have no amounts.
    """

    uid: str
    namespace: str
    name: str
    mode: ModeName
    policy: ComputePolicy
    requests: tuple[ClaimRequest, ...]
    admin_access: bool = False

    @property
    def slices(self) -> tuple[PlannedSlice, ...]:
        """All slices in the order of the requests, with one slice for each device."""
        return tuple({part.device: part for request in self.requests for part in request.slices}.values())

    def placement(self, node: str) -> Placement:
        """Return the slices as a placement on ``node``, as in an allocation record."""
        return Placement(node=NodeName(node), mode=self.mode, slices=tuple(part.slice() for part in self.slices))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """One result of the allocation, with the device that it names and the driver parameters that apply to it."""

    result: AllocatedDevice
    device: ClaimDevice
    parameters: SliceParameters


def claim_plan(claim: ResourceClaim, node: str, devices: Sequence[Device]) -> ClaimPlan:
    """Return the slices that the agent of a node must grant for an allocated claim.

    Args:
        claim: the claim.
        node: name of the agent's node.
        devices: the devices of that node.

    Raises:
        CalabashError: NOT_FOUND if no device of this driver is allocated or a device is not on this node, MODE_CONFLICT
            if the slices differ in mode, size or policy, BAD_REQUEST if the allocation is one that no scheduler writes.
    """
    who = f"claim {claim.metadata.namespace}/{claim.metadata.name}"[:_TEXT_MAX]
    allocation = claim.status.allocation
    results = [r for r in allocation.devices.results if r.driver == DRIVER] if allocation is not None else []
    if allocation is None or not results:
        raise CalabashError(
            f"{who} has no device of {DRIVER} allocated", reason=Reason.NOT_FOUND, hint="the scheduler does that"
        )
    if len(results) > RESULTS_MAX:
        raise CalabashError(f"{who} has {len(results)} devices, at most {RESULTS_MAX}")
    known = {device.name: device for device in claim_devices(devices)}
    given = [
        _Given(
            result=result,
            device=_device(who, result, node, known),
            parameters=parameters_for(result.request, allocation.devices.config),
        )
        for result in results
    ]
    _require_once(who, given)
    admin = {bool(result.admin_access) for result in results}
    if len(admin) > 1:
        raise CalabashError(
            f"{who} has devices with and without admin access",
            reason=Reason.MODE_CONFLICT,
            hint="one claim to watch devices, another to use them",
        )
    planned = {id(one): _observed(one) if admin == {True} else _slice(who, one) for one in given}
    mode, policy = (ModeName(""), ComputePolicy.FIXED) if admin == {True} else _uniform(who, given, planned)
    return ClaimPlan(
        uid=claim.metadata.uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        mode=mode,
        policy=policy,
        requests=_requests(given, planned, node),
        admin_access=admin == {True},
    )


def _device(who: str, result: AllocatedDevice, node: str, known: Mapping[str, ClaimDevice]) -> ClaimDevice:
    if result.pool != node:
        raise CalabashError(
            f"{who} has device {result.device[:_TEXT_MAX]!r} of {result.pool[:_TEXT_MAX]!r}, this is {node}",
            reason=Reason.NOT_FOUND,
        )
    found = known.get(result.device)
    if found is None:
        raise CalabashError(
            f"{who} has device {result.device[:_TEXT_MAX]!r}, which is not on this node",
            reason=Reason.NOT_FOUND,
            hint="delete the pod; a claim that is made again is given a device that is here",
        )
    if len(result.request) > 2 * _TEXT_MAX or not result.request:
        raise CalabashError(f"{who} has a device for a request without a proper name")
    return found


def _require_once(who: str, given: Sequence[_Given]) -> None:
    """Check that no two results name the same card. Results with admin access may.

    Args:
        who: the claim, as error messages name it.
        given: the results of the allocation.

    Raises:
        CalabashError: MODE_CONFLICT if two do.
    """
    seen: dict[str, str] = {}
    for one in given:
        card, name = one.device.device.uuid, one.result.device
        if card in seen and not one.result.admin_access:
            raise CalabashError(
                f"{who} has card {card} twice, as {seen[card]} and {name}",
                reason=Reason.MODE_CONFLICT,
                hint=f"a constraint distinctAttribute: {DRIVER}/uuid gives as many cards; or one claim for each",
            )
        seen[card] = name


def _observed(one: _Given) -> PlannedSlice:
    return PlannedSlice(device=one.device.device.uuid, memory_mib=0, core_percent=0)


def _slice(who: str, one: _Given) -> PlannedSlice:
    """Return the slice that corresponds to one result of the allocation.

    Raises:
        CalabashError: the device is not offered in the amounts of the result; the message names the claim as ``who``.
    """
    found, device, capacity = one.device, one.device.device, one.result.consumed_capacity
    _require_parameters(who, one)
    if not found.shared:
        return _whole(one)
    if consumed(capacity.get(SLICES), what=SLICES) != 1 or not one.result.share_id:
        raise CalabashError(f"{who} has {found.name}, which is shared, and no share of it")
    memory_mib = consumed_mib(capacity.get(MEMORY), what=MEMORY) - reserve_mib(found.mode)
    cores = 0 if found.mode == TIMESLICE.name else consumed(capacity.get(CORES), what=CORES)
    least = 0 if found.mode == TIMESLICE.name else 1
    if not least <= memory_mib <= device.memory_mib or cores > 100 or (found.mode == MPS_MODE and not cores):
        raise CalabashError(f"{who} has {memory_mib} MiB and {cores}% of {found.name}, which are out of range")
    spill_mib = one.parameters.spill_mib or 0
    return PlannedSlice(
        device=device.uuid,
        memory_mib=memory_mib + spill_mib,
        core_percent=cores or (best_effort_percent(device, memory_mib) if found.mode == VGPU.name else 0),
        profile=found.profile,
        start=found.start,
        spill_mib=spill_mib,
    )


def _whole(one: _Given) -> PlannedSlice:
    """Return the slice of a device that only one claim can have: a whole card or a MIG partition."""
    found, device = one.device, one.device.device
    if _mode(one) == BROKERED.name:
        memory_mib = device.memory_mib - reserve_mib(VGPU.name)
        return PlannedSlice(device=device.uuid, memory_mib=memory_mib, core_percent=100)
    profile = device.mig.profile(found.profile) if found.mode == MIG_MODE and device.mig is not None else None
    if profile is None or device.mig is None:
        return PlannedSlice(device=device.uuid, memory_mib=device.memory_mib, core_percent=100)
    percent = max(1, 100 * profile.compute // device.mig.compute)
    return PlannedSlice(
        device=device.uuid,
        memory_mib=profile.memory_mib,
        core_percent=percent,
        profile=profile.name,
        start=found.start,
    )


def _require_parameters(who: str, one: _Given) -> None:
    """Check that the sharing mode of the device supports the driver parameters of the result.

    Raises:
        CalabashError: MODE_CONFLICT if it does not; the message names the claim as ``who``.
    """
    found, parameters = one.device, one.parameters
    if found.mode == OBSERVED:
        raise CalabashError(
            f"{who} has {found.name}, by which administrators look at the card and which gives nothing of it",
            reason=Reason.MODE_CONFLICT,
            hint="say adminAccess: true in the request, or ask another class",
        )
    brokered = parameters.isolation is Isolation.BROKERED
    if brokered and found.mode not in {VGPU.name, EXCLUSIVE.name}:
        raise _unserved(who, found, "isolation brokered", "software slices and whole cards can be brokered")
    if parameters.spill_mib and (found.mode != VGPU.name or brokered):
        raise _unserved(who, found, "spill", "only software slices that are not brokered page memory")
    if found.mode != VGPU.name and parameters.policy not in {None, ComputePolicy.FIXED}:
        raise _unserved(who, found, f"policy {parameters.policy}", "only software slices have it")


def _unserved(who: str, found: ClaimDevice, what: str, hint: str) -> CalabashError:
    return CalabashError(f"{who} asks {what} of {found.name}", reason=Reason.MODE_CONFLICT, hint=hint)


def _mode(one: _Given) -> ModeName:
    return BROKERED.name if one.parameters.isolation is Isolation.BROKERED else one.device.mode


def _policy(who: str, one: _Given) -> ComputePolicy:
    """Return the compute policy of a result. A software slice for which no compute was requested is best-effort.

    Raises:
        CalabashError: MODE_CONFLICT if another policy was requested for such a slice; the message names the claim as
            ``who``.
    """
    found, asked = one.device, one.parameters.policy
    if found.mode != VGPU.name or consumed(one.result.consumed_capacity.get(CORES), what=CORES):
        return asked or ComputePolicy.FIXED
    if asked not in {None, ComputePolicy.BEST_EFFORT}:
        raise CalabashError(
            f"{who} asks policy {asked} of {found.name} and no cores",
            reason=Reason.MODE_CONFLICT,
            hint="ask for cores in capacity.requests, or for policy best-effort",
        )
    return ComputePolicy.BEST_EFFORT


def _uniform(who: str, given: Sequence[_Given], planned: Mapping[int, PlannedSlice]) -> tuple[ModeName, ComputePolicy]:
    """Return the sharing mode and the compute policy that all slices have.

    Args:
        who: the claim, as error messages name it.
        given: the results of the allocation.
        planned: the slice of each result, by the Python ``id`` of the result.

    Raises:
        CalabashError: MODE_CONFLICT if the slices differ in mode, policy or size.
    """
    modes = sorted({_mode(one) for one in given})
    if len(modes) > 1:
        raise CalabashError(
            f"{who} has devices in modes {' and '.join(modes)}",
            reason=Reason.MODE_CONFLICT,
            hint="one claim for each mode",
        )
    mode = ModeName(modes[0])
    sizes = {(p.memory_mib, p.spill_mib, p.core_percent, p.profile) for p in planned.values()}
    if len(sizes) > 1 and mode != EXCLUSIVE.name:
        raise _differ(who, "size")
    if mode == MPS_MODE and len(given) > 1:
        raise CalabashError(
            f"{who} has {len(given)} devices in mode mps, whose service a program reaches on one device",
            reason=Reason.MODE_CONFLICT,
            hint="one claim for each, in containers of their own",
        )
    policies = {_policy(who, one) for one in given}
    if len(policies) > 1:
        raise _differ(who, "policy")
    return mode, policies.pop()


def _differ(who: str, what: str) -> CalabashError:
    return CalabashError(
        f"the slices of {who} differ in {what}", reason=Reason.MODE_CONFLICT, hint=f"one claim for each {what}"
    )


def _requests(given: Sequence[_Given], planned: Mapping[int, PlannedSlice], node: str) -> tuple[ClaimRequest, ...]:
    by_name: dict[str, list[_Given]] = {}
    for one in given:
        by_name.setdefault(one.result.request, []).append(one)
    return tuple(
        ClaimRequest(
            name=name,
            pool=node,
            devices=tuple(one.result.device for one in ones),
            share_ids=tuple(one.result.share_id or "" for one in ones),
            slices=tuple({planned[id(one)].device: planned[id(one)] for one in ones}.values()),
        )
        for name, ones in by_name.items()
    )
