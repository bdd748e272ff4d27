"""Tests of the nominal memory size, with which all filters by memory compare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.claims.claims_world import card

from calabash.broker.devices import facts_of
from calabash.broker.filters import parse_filter
from calabash.broker.messages import RemoteCard
from calabash.kubernetes.claims.device_entry import OfferedCard, slice_device
from calabash.kubernetes.claims.device_names import claim_devices
from calabash.kubernetes.claims.expressions import demands_of
from calabash.model.device import Device, DeviceUuid
from calabash.model.nominal import MISSING_MAX, nominal_memory_mib
from calabash.model.request import Selector
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sharing.registry import selector_misfit

# Memory in MiB as the vendor's tool shows it, and the size in GiB that the model is sold with.
REPORTED = [
    ("Tesla T4", 15_360, 16),
    ("Tesla P4", 7_611, 8),
    ("Tesla P40", 24_451, 24),
    ("Tesla P100-PCIE-16GB", 16_276, 16),
    ("Tesla V100-SXM2-16GB", 16_160, 16),
    ("Tesla V100-SXM2-32GB", 32_510, 32),
    ("NVIDIA A2", 15_356, 16),
    ("NVIDIA A10", 23_028, 24),
    ("NVIDIA A10G", 23_028, 24),
    ("NVIDIA A30", 24_576, 24),
    ("NVIDIA A40", 46_068, 48),
    ("NVIDIA A100-SXM4-40GB", 40_326, 40),
    ("NVIDIA A100-PCIE-40GB", 40_536, 40),
    ("NVIDIA A100-SXM4-80GB", 81_920, 80),
    ("NVIDIA L4", 23_034, 24),
    ("NVIDIA L40S", 46_068, 48),
    ("NVIDIA RTX A6000", 49_140, 48),
    ("NVIDIA GeForce RTX 2080 Ti", 11_264, 11),
    ("NVIDIA GeForce RTX 3090", 24_576, 24),
    ("NVIDIA GeForce RTX 4090", 24_564, 24),
    ("NVIDIA GeForce RTX 5090", 32_607, 32),
    ("NVIDIA H100 PCIe", 81_559, 80),
    ("NVIDIA H100 80GB HBM3", 81_559, 80),
    ("NVIDIA H100 NVL", 95_830, 94),
    ("NVIDIA GH200 480GB", 97_871, 96),
    ("NVIDIA H200", 143_771, 141),
    ("NVIDIA B200", 183_359, 180),
    ("AMD Instinct MI300X", 196_288, 192),
]


@pytest.mark.parametrize(("model", "reported_mib", "gib"), REPORTED)
def test_nominal_size_is_the_size_under_which_the_model_is_sold(model: str, reported_mib: int, gib: int) -> None:
    assert nominal_memory_mib(reported_mib, model) == gib * 1024


@given(st.integers(1, 1 << 20), st.sampled_from(["", "A100-SXM4-40GB", "H100 80GB HBM3", "card of 0GB"]))
def test_nominal_size_is_never_below_the_reported_size_nor_far_above_it(reported_mib: int, model: str) -> None:
    nominal_mib = nominal_memory_mib(reported_mib, model)
    assert reported_mib <= nominal_mib <= reported_mib / (1 - MISSING_MAX)
    assert nominal_memory_mib(nominal_mib, model) == nominal_mib


A100 = Device(uuid=DeviceUuid("GPU-1"), index=0, vendor="nvidia", model="NVIDIA A100-SXM4-40GB", memory_mib=40_326)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("memory>=40GiB,model~A100", True),
        ("memory=40GiB", True),
        ("memory<=40GiB", True),
        ("memory>40GiB", False),
        ("memory<40GiB", False),
        ("memory>=41GiB", False),
        ("free_memory>=40GiB", False),
        ("free_memory>=39GiB", True),
    ],
)
def test_filter_of_remote_cards_compares_with_the_nominal_size(text: str, accepted: bool) -> None:
    remote = RemoteCard(
        uuid=A100.uuid,
        index=0,
        model=A100.model,
        memory_mib=A100.memory_mib,
        memory_free_mib=A100.memory_mib,
        memory_used_mib=0,
        cores_free_percent=100,
        utilization_percent=0,
        compute_capability="8.0",
        health="healthy",
        leases=[],
    )
    assert parse_filter(text).accepts(facts_of(remote, server="lab", driver="580")) is accepted


@pytest.mark.parametrize(
    ("selector", "accepted"),
    [
        (Selector(memory_mib_min=40 * 1024), True),
        (Selector(memory_mib_min=40 * 1024 + 1), False),
        (Selector(memory_mib_max=40 * 1024), True),
        (Selector(memory_mib_max=40 * 1024 - 1), False),
        (Selector(reported_mib_min=40 * 1024), False),
        (Selector(reported_mib_min=40_326), True),
    ],
)
def test_selector_of_a_request_compares_with_the_nominal_size(selector: Selector, accepted: bool) -> None:
    assert (selector_misfit(A100, selector) is None) is accepted


@pytest.mark.parametrize(
    ("least_mib", "most_mib", "accepted"),
    [(40 * 1024, 0, True), (0, 40 * 1024, True), (41 * 1024, 0, False), (0, 39 * 1024, False)],
)
def test_size_of_a_card_in_the_scheduler_is_the_nominal_one(least_mib: int, most_mib: int, accepted: bool) -> None:
    gpu = GpuSpec(model="GPU-1", card=A100.model, memory_mib=A100.memory_mib)
    cluster = Cluster([NodeSpec(name="n", cpu_milli=1000, memory_mib=1000, gpus=(gpu,))])
    shape = Shape(gpu_count=1, gpu_milli=1000, card_memory_mib_min=least_mib, card_memory_mib_max=most_mib)
    assert bool(CompiledShape(cluster, shape).fitting()[0]) is accepted


def test_devices_of_claims_publish_their_nominal_size_in_every_mode() -> None:
    device = card(0)
    for found in claim_devices([device]):
        told = slice_device(found, OfferedCard(name="card"), taints=(), counters=False).attributes["memoryGiB"].int_
        assert told is not None
        if found.profile:
            assert f"{told}gb" in found.profile
        else:
            assert told * 1024 == device.nominal_memory_mib


@pytest.mark.parametrize(
    ("expression", "nominal_mib"),
    [
        ('device.attributes["calabash.dev"].memoryGiB >= 40', 40 * 1024),
        ("device.attributes['calabash.dev'].memoryGiB > 40", 41 * 1024),
        ('device.attributes["calabash.dev"].memoryGiB == 80', 80 * 1024),
        ('device.attributes["calabash.dev"].memoryGiB < 80', 0),
    ],
)
def test_planner_reads_the_nominal_size_from_selectors(expression: str, nominal_mib: int) -> None:
    found = demands_of([expression])
    assert (found.nominal_mib_min, found.reported_mib_min) == (nominal_mib, 0)
