"""Defaults of the compute share and compute policy of a request, from the amounts that the request names.

Every front end applies this rule:

========================  ===================  ==============================================================
cores                     policy               result
========================  ===================  ==============================================================
named                     not named            the share, ``fixed``
not named, memory named   not named            ``best-effort``: the memory is guaranteed, the compute is not
neither is named          not named            whole devices: all of the compute, ``fixed``
not named                 ``fixed``            all of the compute
named                     ``burst``            the share at least, and idle time
not named                 ``burst``            refused: there is no share to guarantee
named, or memory named    ``best-effort``      idle time; ``cores`` is a weight among best-effort slices
neither is named          ``best-effort``      refused: it would be a whole device
========================  ===================  ==============================================================

A request for all of the compute without an amount of memory is a request for a whole device, which is not shared: ``cores`` of
100 alone counts as not named. In modes that do not share compute by policy (``exclusive``, ``mig``, ``mps``, ``timeslice``,
``passthrough``), and at isolation level ``hardware``, a request that names no cores and no policy gets all of the compute that
the mode gives.
"""

from __future__ import annotations

from dataclasses import replace

from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName

ALL_PERCENT = 100
POLICY_MODES = frozenset({ModeName(""), ModeName("vgpu"), ModeName("brokered")})  # modes that share compute by policy


def with_compute(
    request: GpuRequest, *, core_percent: int | None, policy: ComputePolicy | None, part: bool | None = None
) -> GpuRequest:
    """Return the request with its compute share and policy set by the rule of this module.

    Args:
        request: the request with all other fields; its own share and policy are not read.
        core_percent: the compute share that the user named, 1..100; None if no share was named.
        policy: the policy that the user named; None if no policy was named.
        part: True if the request is for a part of each device's memory, False if it is for all of it; None: decide from
            the amounts of the request.

    Raises:
        CalabashError(BAD_REQUEST): the policy lacks the amount that it needs.
    """
    if part is None:
        part = names_memory(request)
    named = core_percent if core_percent != ALL_PERCENT or part else None
    sized = bool(request.mig or request.vf)
    if policy is ComputePolicy.BURST and named is None and not sized:
        raise CalabashError(
            "policy burst needs a compute share, and none is given",
            hint="name the guaranteed share, like 25 percent (--cores 25), or leave the policy out",
        )
    if policy is ComputePolicy.BEST_EFFORT and named is None and not part and not sized:
        raise CalabashError(
            "policy best-effort needs an amount of memory, and none is given",
            hint="name the memory, like 8 GiB (--memory 8GiB), or leave the policy out for a whole device",
        )
    if policy is None:
        shares = request.mode in POLICY_MODES and request.isolation is not Isolation.HARDWARE
        best_effort = part and named is None and shares and not sized
        policy = ComputePolicy.BEST_EFFORT if best_effort else ComputePolicy.FIXED
    return replace(request, core_percent=core_percent or ALL_PERCENT, policy=policy)


def with_policy(request: GpuRequest, policy: ComputePolicy) -> GpuRequest:
    """Return the result of an earlier ``with_compute`` with another policy. Raises like ``with_compute``."""
    return with_compute(request, core_percent=None if _unnamed(request) else request.core_percent, policy=policy)


def reapply_compute_defaults(request: GpuRequest) -> GpuRequest:
    """Apply the rule of this module again, because the mode or isolation level of the request has changed since.

    Args:
        request: a result of ``with_compute``.
    """
    if _unnamed(request) and names_memory(request):
        return with_compute(request, core_percent=None, policy=None)
    return request


def names_memory(request: GpuRequest) -> bool:
    """Return True if the request names an amount of device memory that is not the whole memory."""
    return request.memory_mib is not None or request.memory_milli not in (None, 1000)


def _unnamed(request: GpuRequest) -> bool:
    return request.policy is ComputePolicy.BEST_EFFORT and request.core_percent == ALL_PERCENT
