"""Tests of the requests of claims before allocation: classes, selectors, capacity and parameters of the driver."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.claims.claims_world import slice_config

from calabash.adapters.kube.objects.claims import DeviceClass, ResourceClaimSpec
from calabash.kubernetes.claims.expressions import EXPRESSION_MAX, demands_of
from calabash.kubernetes.claims.requests import request_of
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Selector

OURS = 'device.driver == "calabash.dev"'


def a_class(name: str, expression: str, *configs: Any) -> DeviceClass:
    spec = {"selectors": [{"cel": {"expression": expression}}], "config": list(configs)}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceClass)


CLASSES = {
    found.metadata.name: found
    for found in (
        a_class("whole", f'{OURS} && device.attributes["calabash.dev"].mode == "exclusive"'),
        a_class("vgpu", f"{OURS} && device.attributes['calabash.dev'].mode == 'vgpu'"),
        a_class("mig", f'{OURS} && device.attributes["calabash.dev"].mode == "mig"'),
        a_class("mps", f'{OURS} && device.attributes["calabash.dev"].mode == "mps"'),
        a_class("timeslice", f'{OURS} && device.attributes["calabash.dev"].mode == "timeslice"'),
        a_class("any", OURS),
        a_class("gpu.nvidia.com", f"{OURS} && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
        a_class("mig.nvidia.com", f"{OURS} && device.attributes['gpu.nvidia.com'].?type.orValue('') == 'mig'"),
        a_class("nic", 'device.driver == "nic.example.com"'),
    )
}


def spec(*requests: Any, config: Any = ()) -> ResourceClaimSpec:
    return msgspec.convert({"devices": {"requests": list(requests), "config": list(config)}}, ResourceClaimSpec)


def one(name: str, **more: Any) -> dict[str, Any]:
    return {"name": "gpu", "exactly": {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1, **more}}


def sub(name: str, of: str) -> dict[str, Any]:
    return {"name": name, "deviceClassName": of}


def amounts(**requests: str) -> dict[str, Any]:
    return {"requests": requests}


def cel(*expressions: str) -> list[Any]:
    return [{"cel": {"expression": text}} for text in expressions]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (one("whole", count=3), GpuRequest(count=3, mode=ModeName("exclusive"))),
        (
            one("vgpu", capacity=amounts(memory="10Gi", cores="30")),
            GpuRequest(mode=ModeName("vgpu"), memory_mib=10_240, core_percent=30),
        ),
        (
            one("vgpu", capacity=amounts(memory="10Gi")),
            GpuRequest(mode=ModeName("vgpu"), memory_mib=10_240, policy=ComputePolicy.BEST_EFFORT),
        ),
        (one("mig", selectors=cel('device.attributes["calabash.dev"].profile == "1g.10gb"')), GpuRequest(mig="1g.10gb")),
        (
            one("mig.nvidia.com", selectors=cel("device.attributes['gpu.nvidia.com'].profile == '3g.40gb'")),
            GpuRequest(mig="3g.40gb"),
        ),
        (
            one("gpu.nvidia.com", selectors=cel("device.attributes['gpu.nvidia.com'].productName == 'NVIDIA A100'")),
            GpuRequest(mode=ModeName("exclusive"), selector=Selector(models=("NVIDIA A100",))),
        ),
        (
            one("any", selectors=cel('device.capacity["calabash.dev"].memory.compareTo(quantity("40Gi")) >= 0')),
            GpuRequest(mode=ModeName("exclusive"), selector=Selector(reported_mib_min=40_960)),
        ),
        (
            one("any", selectors=cel('device.attributes["calabash.dev"].memoryGiB >= 40')),
            GpuRequest(mode=ModeName("exclusive"), selector=Selector(memory_mib_min=40_960)),
        ),
        (
            one("any", capacity=amounts(memory="1Gi")),
            GpuRequest(mode=ModeName("vgpu"), memory_mib=1024, policy=ComputePolicy.BEST_EFFORT),
        ),
        (
            one("mps", capacity=amounts(memory="4Gi", cores="20")),
            GpuRequest(mode=ModeName("mps"), memory_mib=4096, core_percent=20),
        ),
        (one("timeslice"), GpuRequest(mode=ModeName("timeslice"))),
        (one("nic"), None),
        (one("whole", adminAccess=True), None),
        (
            {"name": "gpu", "firstAvailable": [sub("n", "nic"), sub("g", "whole")]},
            GpuRequest(mode=ModeName("exclusive")),
        ),
    ],
)  # fmt: skip
def test_a_claim_asks_for(request_: Any, expected: GpuRequest | None) -> None:
    assert request_of(spec(request_), CLASSES) == expected


def test_what_a_claim_says_to_the_driver_counts_over_what_its_class_says() -> None:
    classes = {
        "vgpu": a_class(
            "vgpu",
            f'{OURS} && device.attributes["calabash.dev"].mode == "vgpu"',
            {"opaque": {"driver": "calabash.dev", "parameters": slice_config(policy="burst", spill="2Gi")}},
        )
    }
    asked = one("vgpu", capacity=amounts(memory="8Gi", cores="50"))
    found = request_of(spec(asked), classes)
    assert found is not None
    assert (found.policy, found.memory_mib, found.spill_mib) == (ComputePolicy.BURST, 10_240, 2048)
    config = {
        "requests": ["gpu"],
        "opaque": {"driver": "calabash.dev", "parameters": slice_config(policy="fixed", spill="0")},
    }
    found = request_of(spec(asked, config=[config]), classes)
    assert found is not None
    assert (found.policy, found.memory_mib, found.spill_mib) == (ComputePolicy.FIXED, 8192, 0)
    brokered = {"opaque": {"driver": "calabash.dev", "parameters": slice_config(isolation="brokered")}}
    found = request_of(spec(one("whole"), config=[brokered]), CLASSES)
    assert found is not None
    assert (found.mode, found.isolation) == ("brokered", Isolation.BROKERED)


def test_requests_of_a_claim_are_one_allocation_or_refused() -> None:
    two = spec(one("whole"), {**one("whole", count=2), "name": "more"})
    assert request_of(two, CLASSES) == GpuRequest(count=3, mode=ModeName("exclusive"))
    with pytest.raises(CalabashError, match="requests gpu, small differ in mode or amounts") as raised:
        request_of(spec(one("whole"), {**one("vgpu"), "name": "small"}), CLASSES)
    assert raised.value.reason is Reason.MODE_CONFLICT


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (one("gone"), "device class gone does not exist"),
        (one("whole", allocationMode="All"), "all devices of a node"),
        (one("mig"), "names no MIG profile"),
        (one("whole", count=65), "gpus 65 is out of range"),
        (one("vgpu", capacity=amounts(memory="ten")), "memory 'ten' is not an amount"),
        (one("vgpu", capacity=amounts(memory="1")), "less than 1Mi"),
        (one("vgpu", capacity=amounts(cores="0.5")), "cores 0.5 is not a whole number"),
        (one("vgpu", capacity=amounts(cores="101")), "cores 101 is out of range"),
        (one("mig", selectors=cel('device.attributes["calabash.dev"].profile == "huge"')), "MIG profile 'huge'"),
        (one("any", selectors=cel('device.attributes["calabash.dev"].mode == "magic"')), "mode 'magic' is not known"),
        (one("any", selectors=cel('device.attributes["calabash.dev"].mode == "observed"')), "administrators may"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_its_request(request_: Any, message: str) -> None:
    with pytest.raises(CalabashError, match="request gpu: ") as raised:
        request_of(spec(request_), CLASSES)
    assert message in raised.value.message


def test_a_class_is_ours_by_its_selectors_and_not_by_its_name() -> None:
    others = {
        "nic": CLASSES["nic"],
        "calabash.dev": a_class("calabash.dev", "true"),
        "either": a_class("either", f'{OURS} || device.driver == "gpu.nvidia.com"'),
    }
    assert request_of(spec(one("gpu.nvidia.com")), CLASSES) is not None
    assert [name for name in others if request_of(spec(one(name)), others) is not None] == []


def test_only_what_must_hold_is_demanded() -> None:
    found = demands_of(
        [
            f'({OURS}) && (device.attributes["calabash.dev"].model == "a && b" && !(1 > 2))',
            'device.attributes["calabash.dev"].mode == "vgpu" ? true : false',
            'device.attributes["calabash.dev"].profile == "1g.5gb" || true',
            'has(device.attributes["x"]) && ["calabash.dev", "||"].exists(d, d == device.driver)',
            'device.capacity["calabash.dev"].memory.compareTo(quantity("8Gi")) > 0 && "unclosed',
        ]
    )
    assert found.driver == "calabash.dev"
    assert found.attributes == {("calabash.dev", "model"): "a && b"}
    assert (found.nominal_mib_min, found.reported_mib_min) == (0, 0)
    assert demands_of([OURS + " " * EXPRESSION_MAX]).driver == ""


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["&&", "||", "(", ")", "[", "]", '"', "'", "\\", "?", OURS, " "])).map("".join)
)
def test_any_text_is_read_to_its_end(text: str) -> None:
    demands_of([text, "(" * 4000 + text, "(" * 900 + text + " && x)" * 900])
    assert demands_of([f"(({OURS}) && {text!r} == {text!r})"]).driver in ("", "calabash.dev")
