"""Tests of sharing mode timeslice: number of replicas, optional memory caps, and charges."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.binder.local.machine import LocalScheduler, Start
from calabash.model.device import REPLICAS, REPLICAS_MAX, Device, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ComputePolicy, GpuRequest, ModeName, Slice
from calabash.sched import QueueSpec
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits
from calabash.sharing.timeslice import MODE, SLICE_RESERVE_MIB, charged_memory_mib

NAME = ModeName("timeslice")
CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="acme", model="A100", memory_mib=40_960)
OTHER = replace(CARD, uuid=DeviceUuid("GPU-2"), index=1)


def ask(memory_mib: int | None = None) -> GpuRequest:
    return GpuRequest(mode=NAME, memory_mib=memory_mib)


def filled(card: Device, request: GpuRequest) -> tuple[list[HeldSlice], Misfit]:
    """Return as many slices as fit, and the misfit of the next request."""
    held: list[HeldSlice] = []
    while isinstance(answer := fits(card, NAME if held else None, held, request), Slice):
        held.append(HeldSlice(slice=answer))
    return held, answer


@pytest.mark.parametrize("replicas", [1, 2, REPLICAS, REPLICAS_MAX])
def test_device_accepts_as_many_slices_as_replicas(replicas: int) -> None:
    card = replace(CARD, replicas=replicas)
    held, refused = filled(card, ask())
    assert len(held) == replicas
    assert refused.reason is Reason.NO_CAPACITY
    assert f"{replicas} of {replicas} replicas" in refused.message
    assert MODE.occupancy(card, held).slots_free == 0


@pytest.mark.parametrize("replicas", range(1, REPLICAS_MAX + 1))
def test_as_many_slices_fit_by_charges_as_replicas(replicas: int) -> None:
    card = replace(CARD, replicas=replicas)
    charge = MODE.charge(card, Slice(device=CARD.uuid, memory_mib=0, core_percent=0), ComputePolicy.FIXED)
    assert 1000 // charge.core_milli == replicas


def test_memory_is_divided_among_requests_with_a_memory_amount() -> None:
    held, refused = filled(CARD, ask(16_000))
    assert len(held) == 2
    assert refused.reason is Reason.NO_MEMORY
    open_end = fits(CARD, NAME, held, ask())
    assert isinstance(open_end, Slice)
    assert open_end.memory_mib == 0
    large = fits(CARD, None, (), ask(40_960))
    assert isinstance(large, Misfit)
    assert large.reason is Reason.TOO_LARGE
    half = fits(CARD, None, (), GpuRequest(mode=NAME, memory_milli=500))
    assert isinstance(half, Slice)
    assert half.memory_mib == 20_480 - SLICE_RESERVE_MIB


asks = st.builds(ask, st.none() | st.integers(1, 50_000))


@given(st.lists(asks, max_size=40), st.lists(st.integers(0, 30), max_size=20), st.integers(1, REPLICAS_MAX))
def test_replicas_and_memory_are_never_overcommitted_and_charges_agree(
    requests: list[GpuRequest], releases: list[int], replicas: int
) -> None:
    card, held = replace(CARD, replicas=replicas), list[HeldSlice]()
    for number, request in enumerate(requests):
        answer = fits(card, NAME if held else None, held, request)
        if isinstance(answer, Slice):
            assert answer.memory_mib == (request.memory_mib or 0)
            held.append(HeldSlice(slice=answer))
        charges = [MODE.charge(card, h.slice, h.policy) for h in held]
        assert len(held) <= replicas
        assert sum(charged_memory_mib(h.slice) for h in held) <= card.memory_mib
        assert sum(c.core_milli for c in charges) <= 1000
        assert sum(c.memory_mib for c in charges) <= card.memory_mib
        occupancy = MODE.occupancy(card, held)
        assert occupancy.memory_mib + occupancy.memory_free_mib <= card.memory_mib
        if number < len(releases) and held:
            held.pop(releases[number] % len(held))


@given(st.lists(asks, max_size=24), st.integers(1, 12), st.integers(1, 12))
def test_scheduler_fills_devices_with_replicas_and_binds_only_requests_that_fit(
    requests: list[GpuRequest], one: int, two: int
) -> None:
    cards = [replace(CARD, replicas=one), replace(OTHER, replicas=two)]
    scheduler = LocalScheduler(NodeName("here"), cards, [QueueSpec(name="default")])
    held: dict[DeviceUuid, list[HeldSlice]] = {card.uuid: [] for card in cards}
    for number, request in enumerate(requests):
        if (request.memory_mib or 0) > CARD.memory_mib - SLICE_RESERVE_MIB:
            with pytest.raises(CalabashError):
                scheduler.submit(AllocationId(f"a{number}"), request, submitted_at_s=float(number))
            continue
        scheduler.submit(AllocationId(f"a{number}"), request, submitted_at_s=float(number))
        for decision in scheduler.cycle(float(number)):
            if isinstance(decision, Start):
                (part,) = decision.placement.slices
                held[part.device].append(HeldSlice(slice=part))
    for card in cards:
        assert len(held[card.uuid]) <= card.replicas
        assert sum(charged_memory_mib(h.slice) for h in held[card.uuid]) <= card.memory_mib
    if all(request.memory_mib is None for request in requests) and len({one, two}) == 1:
        assert sum(map(len, held.values())) == min(len(requests), one + two)


def test_waiting_request_starts_when_the_number_of_replicas_is_raised() -> None:
    few = LocalScheduler(NodeName("here"), [replace(CARD, replicas=1)], [QueueSpec(name="default")])
    more = LocalScheduler(NodeName("here"), [replace(CARD, replicas=2)], [QueueSpec(name="default")])
    for scheduler, expected in ((few, 1), (more, 2)):
        for name in "ab":
            scheduler.submit(AllocationId(name), ask(), submitted_at_s=0.0)
        assert sum(isinstance(d, Start) for d in scheduler.cycle(1.0)) == expected
