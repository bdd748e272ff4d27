"""MPS: NVIDIA's multi-process service, with a share of the multiprocessors and a limit of memory for each tenant.

Theory of operation. The clients of one server run at the same time, each on its part of the multiprocessors; nobody
waits for a turn. A share is a ceiling that the service holds: idle time of others does not lift it, so shares are fixed
and their sum stays within the card. Memory is promised as software slices promise it: the sum of all slices, with
``SLICE_RESERVE_MIB`` for each, stays within the card. The reserve is for the server's own context and for what the
driver attributes to nobody.

What tenants share beside the card is fate: a fatal fault of one client hits all clients of the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.device import Device
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Slice
from calabash.sharing.amounts import not_left, wanted_memory_mib
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit, shim_environment

SLICE_RESERVE_MIB = 64
CLIENTS_MAX = 48  # of one server; a tenant with several processes has as many clients


class Mps:
    """Unequal shares at the same time."""

    name = ModeName("mps")
    isolation = Isolation.COOPERATIVE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only when asked for by name: a neighbour's fault is everybody's

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        refused = _unserved(request)
        if refused is not None:
            return refused
        wanted_mib = wanted_memory_mib(device, request, reserve_mib=SLICE_RESERVE_MIB)
        misfit = not_left(
            device,
            self.division(device, held),
            memory_mib=wanted_mib,
            core_percent=request.core_percent,
            reserve_mib=SLICE_RESERVE_MIB,
            slices_max=CLIENTS_MAX,
        )
        if misfit is not None:
            return misfit
        return Slice(device=device.uuid, memory_mib=wanted_mib, core_percent=request.core_percent)

    def charge(self, part: Slice, policy: ComputePolicy) -> Charge:
        del policy
        return Charge(core_milli=10 * part.core_percent, memory_mib=part.memory_mib + SLICE_RESERVE_MIB)

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        memory_mib = sum(h.slice.memory_mib for h in held)
        core_percent = sum(h.slice.core_percent for h in held)
        return DeviceDivision(
            device=device.uuid,
            mode=self.name,
            slices=len(held),
            memory_mib=memory_mib,
            memory_free_mib=max(0, device.memory_mib - memory_mib - SLICE_RESERVE_MIB * (len(held) + 1)),
            core_percent=core_percent,
            core_free_percent=max(0, 100 - core_percent),
            slots_free=max(0, CLIENTS_MAX - len(held)),
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        return Edits(environment=shim_environment(slices, library=library, slot=slot))


def _unserved(request: GpuRequest) -> Misfit | None:
    """What the service cannot do, whatever the card."""
    if request.count > 1:
        return Misfit(
            reason=Reason.MODE_CONFLICT,
            message=f"a program reaches the service of one device, asked {request.count} in mode mps",
        )
    if request.policy is not ComputePolicy.FIXED:
        return Misfit(reason=Reason.MODE_CONFLICT, message=f"mps holds a share fixed, asked {request.policy}")
    return None


MODE = Mps()
