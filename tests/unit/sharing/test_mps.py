"""The rule of mode mps: shares that run at once are never promised twice, and what the service cannot do is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import Reason
from calabash.model.request import ComputePolicy, GpuRequest, ModeName, Slice
from calabash.sharing.mps import CLIENTS_MAX, MODE, SLICE_RESERVE_MIB
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import fits, mode_for

CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="acme", model="A100", memory_mib=40_960)


def ask(cores: int, memory_mib: int | None = None, **more: object) -> GpuRequest:
    return GpuRequest(mode=ModeName("mps"), core_percent=cores, memory_mib=memory_mib, **more)  # type: ignore[arg-type]


def granted(held: list[HeldSlice], request: GpuRequest) -> Slice | Misfit:
    return fits(CARD, ModeName("mps") if held else None, held, request)


@given(st.lists(st.tuples(st.integers(1, 100), st.none() | st.integers(1, 50_000)), max_size=60))
def test_neither_compute_nor_memory_is_promised_twice(asks: list[tuple[int, int | None]]) -> None:
    held: list[HeldSlice] = []
    for cores, memory_mib in asks:
        answer = granted(held, ask(cores, memory_mib))
        if isinstance(answer, Slice):
            held.append(HeldSlice(slice=answer))
    charges = [MODE.charge(CARD, h.slice, h.policy) for h in held]
    assert sum(h.slice.core_percent for h in held) <= 100
    assert sum(h.slice.memory_mib + SLICE_RESERVE_MIB for h in held) <= CARD.memory_mib
    assert sum(c.core_milli for c in charges) <= 1000
    assert sum(c.memory_mib for c in charges) <= CARD.memory_mib
    assert len(held) <= CLIENTS_MAX


def test_equal_parts_are_as_many_as_they_say() -> None:
    held: list[HeldSlice] = []
    for _ in range(4):
        answer = granted(held, ask(25))
        assert isinstance(answer, Slice)
        held.append(HeldSlice(slice=answer))


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ask(10, count=2), Reason.MODE_CONFLICT),
        (ask(10, policy=ComputePolicy.BURST), Reason.MODE_CONFLICT),
        (ask(10, policy=ComputePolicy.BEST_EFFORT), Reason.MODE_CONFLICT),
        (ask(10, 41_000), Reason.TOO_LARGE),
        (ask(51, 1_000), Reason.NO_CORES),
        (ask(10, 30_000), Reason.NO_MEMORY),
    ],
    ids=["several", "burst", "best-effort", "large", "cores", "memory"],
)
def test_what_does_not_fit_is_refused_with_its_reason(request_: GpuRequest, reason: Reason) -> None:
    first = granted([], ask(50, 20_000))
    assert isinstance(first, Slice)
    answer = granted([HeldSlice(slice=first)], request_)
    assert isinstance(answer, Misfit)
    assert answer.reason is reason


def test_it_is_never_chosen_for_whoever_does_not_name_it() -> None:
    for cores in (10, 100):
        assert mode_for(GpuRequest(core_percent=cores)).name != "mps"
