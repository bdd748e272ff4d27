"""Tests of decoding plans: invalid and forged plans are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.objects.plan import (
    PLAN_BYTES_MAX,
    PlannedContainer,
    PlannedSlice,
    PodPlan,
    read_plan,
    write_plan,
)
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import Slice

SLICE = PlannedSlice(device="GPU-1", memory_mib=1024, core_percent=30)
PLAN = PodPlan(
    id="p1", pod_uid="u1", node="n1", containers=(PlannedContainer(name="main", mode="vgpu", slices=(SLICE,)),)
)


def test_what_was_written_is_read() -> None:
    plan = read_plan(write_plan(PLAN))
    assert plan == PLAN
    main = plan.container("main")
    assert main is not None
    assert main.placement("n1").slices[0].memory_mib == 1024
    assert plan.container("other") is None


def test_a_part_of_a_mig_instance_keeps_its_place() -> None:
    part = Slice(device=DeviceUuid("GPU-1"), memory_mib=13_000, core_percent=14, profile="1c.3g.40gb", start=4, part=2)
    one = PlannedContainer(name="main", mode="mig", slices=(PlannedSlice.from_slice(part),))
    plan = read_plan(write_plan(PodPlan(id="p1", pod_uid="u1", node="n1", containers=(one,))))
    assert plan.containers[0].placement("n1").slices == (part,)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"core_percent":30', '"core_percent":101', "core_percent"),
        ('"memory_mib":1024', '"memory_mib":-1', "memory_mib"),
        ('"node":"n1"', '"node":"n1","more":1', "more"),
        ('"node":"n1"', '"node":""', "node"),
        ("}]}]}", '},{"device":"GPU-1","memory_mib":1,"core_percent":1}]}]}', "uses a device twice"),
    ],
)
def test_a_plan_with_a_wrong_field_is_refused(before: str, after: str, why: str) -> None:
    text = write_plan(PLAN)
    assert before in text
    with pytest.raises(CalabashError, match=why) as refused:
        read_plan(text.replace(before, after))
    assert refused.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("more", ["", ',"more":1'])
def test_a_plan_of_a_newer_planner_is_refused_with_both_versions_whatever_else_is_in_it(more: str) -> None:
    text = write_plan(PLAN).replace('"version":1', '"version":2' + more)
    with pytest.raises(
        CalabashError, match=r"plan of the pod has version 2; calabash .* supports version 1"
    ) as refused:
        read_plan(text)
    assert refused.value.reason is Reason.VERSION_MISMATCH
    assert refused.value.hint == "upgrade the agent of the node to the version of the planner"


def test_a_plan_of_any_length_is_refused_without_being_parsed() -> None:
    with pytest.raises(CalabashError, match="bytes, at most"):
        read_plan("[" * (PLAN_BYTES_MAX + 1))


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    with pytest.raises(CalabashError) as refused:
        read_plan(text)
    assert refused.value.reason is Reason.BAD_REQUEST
