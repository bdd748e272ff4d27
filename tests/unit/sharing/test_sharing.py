"""Tests of the rules of all sharing modes: a device is never overcommitted."""

from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash import sharing
from calabash.model.compute import with_compute
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Selector, Slice
from calabash.sharing import registry
from calabash.sharing.protocol import HeldSlice, Misfit
from calabash.sharing.registry import SHARING_MODES, fits, mode_for, mode_named, selector_misfit
from calabash.sharing.timeslice import charged_memory_mib
from calabash.sharing.vgpu import SLICE_RESERVE_MIB, guaranteed_percent

CARD = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="acme", model="A100-SXM4-40GB", memory_mib=40960)

requests = st.builds(
    GpuRequest,
    memory_mib=st.none() | st.integers(1, 50_000),
    core_percent=st.integers(1, 100),
    policy=st.sampled_from(ComputePolicy),
    mode=st.sampled_from([ModeName(""), *SHARING_MODES]),
    isolation=st.just(Isolation.COOPERATIVE),
)


@given(st.lists(requests, max_size=40), st.lists(st.integers(0, 30), max_size=20))
def test_device_is_never_overcommitted_by_random_requests_and_releases(
    asks: list[GpuRequest], releases: list[int]
) -> None:
    held: list[HeldSlice] = []
    mode: ModeName | None = None
    for number, ask in enumerate(asks):
        answer = fits(CARD, mode if held else None, held, ask)
        if isinstance(answer, Slice):
            held.append(HeldSlice(slice=answer, policy=ask.policy))
            mode = mode_for(ask).name
        if number < len(releases) and held:
            held.pop(releases[number] % len(held))
        if mode == "vgpu":
            assert sum(h.slice.memory_mib + SLICE_RESERVE_MIB for h in held) <= CARD.memory_mib
            assert all(h.slice.memory_mib > 0 for h in held)
        if mode == "timeslice":
            assert len(held) <= CARD.replicas
            assert sum(charged_memory_mib(h.slice) for h in held) <= CARD.memory_mib
        assert sum(guaranteed_percent(h.slice.core_percent, h.policy) for h in held) <= 100
        if held and mode == "exclusive":
            assert len(held) == 1


@given(requests.filter(lambda r: r.mode == "vgpu"))
def test_slice_has_exactly_the_requested_amounts(ask: GpuRequest) -> None:
    answer = fits(CARD, None, [], ask)
    if isinstance(answer, Slice):
        assert ask.memory_mib is None or answer.memory_mib == ask.memory_mib
        assert answer.core_percent == ask.core_percent
    else:
        assert answer.reason is Reason.TOO_LARGE


@given(st.lists(requests, max_size=20))
def test_amounts_of_the_division_add_up_to_the_device(asks: list[GpuRequest]) -> None:
    held: list[HeldSlice] = []
    for ask in asks:
        answer = fits(CARD, ModeName("vgpu") if held else None, held, ask)
        if isinstance(answer, Slice) and mode_for(ask).name == "vgpu":
            held.append(HeldSlice(slice=answer, policy=ask.policy))
    occupancy = SHARING_MODES[ModeName("vgpu")].occupancy(CARD, held)
    assert occupancy.slices == len(held)
    assert occupancy.core_percent + occupancy.core_free_percent == 100
    assert occupancy.memory_mib + occupancy.memory_free_mib <= CARD.memory_mib
    if occupancy.memory_free_mib and occupancy.slots_free:
        best_effort = GpuRequest(
            memory_mib=occupancy.memory_free_mib, mode=ModeName("vgpu"), policy=ComputePolicy.BEST_EFFORT
        )
        assert isinstance(fits(CARD, ModeName("vgpu"), held, best_effort), Slice)


def test_request_without_memory_gets_the_same_fraction_of_memory_as_of_compute() -> None:
    answer = fits(CARD, None, [], GpuRequest(core_percent=25))
    assert isinstance(answer, Slice)
    assert answer.memory_mib == CARD.memory_mib // 4 - SLICE_RESERVE_MIB


@pytest.mark.parametrize(("milli", "slices"), [(500, 2), (333, 3), (125, 8), (100, 10), (1000, 1)])
def test_equal_fractions_of_a_device_fit_as_often_as_expected(milli: int, slices: int) -> None:
    ask = GpuRequest(memory_milli=milli, mode=ModeName("vgpu"), policy=ComputePolicy.BEST_EFFORT)
    held: list[HeldSlice] = []
    while isinstance(answer := fits(CARD, ModeName("vgpu") if held else None, held, ask), Slice):
        held.append(HeldSlice(slice=answer, policy=ask.policy))
    assert len(held) == slices
    assert held[0].slice.memory_mib == CARD.memory_mib * milli // 1000 - SLICE_RESERVE_MIB


def test_fraction_of_the_memory_is_a_slice_and_the_whole_memory_is_a_whole_device() -> None:
    assert mode_for(GpuRequest(memory_milli=999)).name == "vgpu"
    assert mode_for(GpuRequest(memory_milli=1000)).name == "exclusive"
    assert mode_for(GpuRequest(memory_milli=1000, core_percent=30)).name == "vgpu"


@pytest.mark.parametrize("milli", [0, 1001, -1])
def test_memory_fraction_outside_1_to_1000_is_refused(milli: int) -> None:
    with pytest.raises(CalabashError, match=f"memory {milli} thousandths"):
        GpuRequest(memory_milli=milli)


def test_request_with_memory_amount_and_memory_fraction_is_refused() -> None:
    with pytest.raises(CalabashError, match="given twice: 5 MiB and 10 thousandths"):
        GpuRequest(memory_mib=5, memory_milli=10)


def test_excluded_device_is_refused_even_if_other_filters_match() -> None:
    by_model = Selector(models=("a100",), models_excluded=("SXM4-40GB",))
    refused = selector_misfit(CARD, by_model)
    assert refused is not None
    assert refused.reason is Reason.SELECTOR_MISMATCH
    assert "SXM4-40GB" in refused.message
    by_uuid = Selector(uuids=(CARD.uuid,), uuids_excluded=(CARD.uuid,))
    assert selector_misfit(CARD, by_uuid) is not None
    assert selector_misfit(CARD, Selector(models_excluded=("H100",), uuids_excluded=(DeviceUuid("GPU-9"),))) is None


def test_best_effort_slice_fits_on_a_device_without_free_compute() -> None:
    full = HeldSlice(slice=Slice(device=CARD.uuid, memory_mib=1000, core_percent=100), policy=ComputePolicy.FIXED)
    ask = GpuRequest(memory_mib=1000, core_percent=50)
    refused = fits(CARD, ModeName("vgpu"), [full], ask)
    assert isinstance(refused, Misfit)
    assert refused.reason is Reason.NO_CORES
    assert "0%" in refused.message
    assert "50%" in refused.message
    free = GpuRequest(memory_mib=1000, core_percent=50, policy=ComputePolicy.BEST_EFFORT)
    assert isinstance(fits(CARD, ModeName("vgpu"), [full], free), Slice)


def test_device_keeps_the_mode_of_its_first_slice_until_it_is_idle() -> None:
    slice_ = HeldSlice(slice=Slice(device=CARD.uuid, memory_mib=1000, core_percent=10))
    refused = fits(CARD, ModeName("vgpu"), [slice_], GpuRequest(mode=ModeName("timeslice")))
    assert isinstance(refused, Misfit)
    assert refused.reason is Reason.MODE_CONFLICT
    assert isinstance(fits(CARD, None, [], GpuRequest(mode=ModeName("timeslice"))), Slice)


def test_request_larger_than_the_device_is_too_large_even_if_the_device_is_busy() -> None:
    busy = HeldSlice(slice=Slice(device=CARD.uuid, memory_mib=0, core_percent=0))
    refused = fits(CARD, ModeName("timeslice"), [busy], GpuRequest(memory_mib=90_000, mode=ModeName("vgpu")))
    assert isinstance(refused, Misfit)
    assert refused.reason is Reason.TOO_LARGE


def test_time_slices_are_limited_in_number_and_do_not_divide_compute() -> None:
    ask = GpuRequest(mode=ModeName("timeslice"))
    held: list[HeldSlice] = []
    while isinstance(answer := fits(CARD, ModeName("timeslice") if held else None, held, ask), Slice):
        assert answer.memory_mib == 0
        held.append(HeldSlice(slice=answer))
    assert answer.reason is Reason.NO_CAPACITY
    assert len(held) == 8
    refused = fits(CARD, None, [], GpuRequest(mode=ModeName("timeslice"), core_percent=50))
    assert isinstance(refused, Misfit)
    assert refused.reason is Reason.MODE_CONFLICT


@pytest.mark.parametrize("health", [h for h in Health if h is not Health.HEALTHY])
def test_only_a_healthy_device_accepts_requests(health: Health) -> None:
    from dataclasses import replace

    refused = fits(replace(CARD, health=health), None, [], GpuRequest())
    assert isinstance(refused, Misfit)
    assert refused.reason is Reason.UNHEALTHY


@pytest.mark.parametrize(
    ("selector", "accepted"),
    [
        (Selector(), True),
        (Selector(models=("a100",)), True),
        (Selector(models=("H100", "A100")), True),
        (Selector(models=("H100",)), False),
        (Selector(uuids=(DeviceUuid("GPU-2"),)), False),
        (Selector(memory_mib_min=50_000), False),
        (Selector(memory_mib_max=50_000), True),
        (Selector(memory_mib_max=10_000), False),
    ],
)
def test_selector_filters_by_model_uuid_and_memory(selector: Selector, accepted: bool) -> None:
    answer = fits(CARD, None, [], GpuRequest(selector=selector))
    assert isinstance(answer, Slice) is accepted


def test_mode_is_chosen_by_amounts_and_isolation_level() -> None:
    assert mode_for(GpuRequest()).name == "exclusive"
    assert mode_for(GpuRequest(memory_mib=100)).name == "vgpu"
    assert mode_for(GpuRequest(core_percent=99)).name == "vgpu"
    assert mode_for(GpuRequest(memory_mib=100, isolation=Isolation.HARDWARE)).name == "mig"
    assert mode_for(GpuRequest(mode=ModeName("timeslice"))).name == "timeslice"


def test_named_mode_that_isolates_less_than_requested_is_refused() -> None:
    with pytest.raises(CalabashError) as caught:
        mode_for(GpuRequest(mode=ModeName("vgpu"), isolation=Isolation.HARDWARE))
    assert caught.value.reason is Reason.MODE_CONFLICT


def test_unknown_mode_is_refused_with_the_existing_names() -> None:
    with pytest.raises(CalabashError) as caught:
        mode_named("warp")
    assert caught.value.reason is Reason.UNKNOWN_MODE
    assert all(name in caught.value.hint for name in ("exclusive", "timeslice", "vgpu"))


def test_modes_load_the_shim_and_restrict_the_visible_devices() -> None:
    part = [Slice(device=CARD.uuid, memory_mib=1, core_percent=1)]
    for name, mode in SHARING_MODES.items():
        edits = mode.container_edits(part, library="/lib.so", slot="/slot")
        environment = dict(edits.environment)
        if name in {
            "passthrough",
            "brokered",
        }:  # programs in a virtual machine or with a worker do not load the shim
            assert "LD_PRELOAD" not in environment
            continue
        assert environment["CUDA_VISIBLE_DEVICES"] == CARD.uuid
        assert environment["LD_PRELOAD"] == "/lib.so", name
        assert environment["CALABASH_SLOT"] == "/slot"
        assert not any("MIB" in key or "PERCENT" in key for key in environment), "limits never travel by environment"


def test_new_mode_needs_one_new_module_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("modes")
    (folder / "twins.py").write_text(
        "from calabash.model.request import Isolation, ModeName, Slice\n"
        "from calabash.sharing.protocol import Misfit\n"
        "from calabash.model.errors import Reason\n"
        "class Twins:\n"
        "    name = ModeName('twins')\n"
        "    isolation = Isolation.BROKERED\n"
        "    def rank(self, request): return None\n"
        "    def fits(self, device, held, request):\n"
        "        if len(held) > 1: return Misfit(reason=Reason.NO_CAPACITY, message='two are on it')\n"
        "        return Slice(device=device.uuid, memory_mib=device.memory_mib // 2, core_percent=50)\n"
        "MODE = Twins()\n"
    )
    monkeypatch.setattr(sharing, "__path__", [*sharing.__path__, str(folder)])
    modes = registry._discover()
    monkeypatch.delitem(sys.modules, "calabash.sharing.twins")
    assert set(modes) == {*SHARING_MODES, "twins"}
    answer = fits(CARD, None, [], GpuRequest(mode=ModeName("twins"), isolation=Isolation.BROKERED), modes)
    assert isinstance(answer, Slice)
    assert isinstance(modes, types.MappingProxyType)


@given(st.lists(st.integers(512, 20_000), min_size=1, max_size=80))
def test_recorded_shares_of_best_effort_slices_follow_their_memory_and_do_not_exceed_the_device(
    memory_mib: list[int],
) -> None:
    held: list[HeldSlice] = []
    for mib in memory_mib:
        ask = with_compute(GpuRequest(memory_mib=mib), core_percent=None, policy=None)
        answer = fits(CARD, ModeName("vgpu") if held else None, held, ask)
        if isinstance(answer, Slice):
            assert answer.core_percent == max(1, 100 * mib // CARD.memory_mib)
            held.append(HeldSlice(slice=answer, policy=ask.policy))
    assert held
    assert sum(h.slice.core_percent for h in held) <= 100


def test_best_effort_slices_fill_the_memory_beside_a_slice_with_all_guaranteed_compute() -> None:
    promised = with_compute(GpuRequest(memory_mib=1024), core_percent=100, policy=None)
    alone = with_compute(GpuRequest(memory_mib=1024), core_percent=None, policy=None)
    held: list[HeldSlice] = []
    for ask in (promised, *[alone] * 60):
        answer = fits(CARD, ModeName("vgpu") if held else None, held, ask)
        if isinstance(answer, Slice):
            held.append(HeldSlice(slice=answer, policy=ask.policy))
    assert len(held) == CARD.memory_mib // (1024 + SLICE_RESERVE_MIB)
    assert isinstance(fits(CARD, ModeName("vgpu"), held[:1], promised), Misfit)


def test_named_share_of_a_best_effort_slice_is_its_weight_and_recorded_share() -> None:
    ask = with_compute(GpuRequest(memory_mib=1024), core_percent=30, policy=ComputePolicy.BEST_EFFORT)
    answer = fits(CARD, None, [], ask)
    assert isinstance(answer, Slice)
    assert answer.core_percent == 30
