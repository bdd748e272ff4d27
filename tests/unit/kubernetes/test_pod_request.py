"""Tests of decoding requests of pods: invalid and forged requests are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.pod_request import (
    REQUEST_BYTES_MAX,
    ContainerKind,
    ContainerRequest,
    GangSource,
    PodRequest,
    read_request,
    write_request,
)
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Selector

RICH = GpuRequest(
    count=2,
    memory_milli=500,
    core_percent=30,
    mode=ModeName("vgpu"),
    isolation=Isolation.BROKERED,
    policy=ComputePolicy.BURST,
    priority=-7,
    tenant="team-a",
    queue="research",
    gang="ring",
    gang_size=4,
    selector=Selector(
        models=("A100",),
        uuids=(DeviceUuid("GPU-1"),),
        models_excluded=("1080",),
        uuids_excluded=(DeviceUuid("GPU-2"),),
    ),
    run_time_s=90.5,
)
ASKED = PodRequest(
    dialect="hami",
    containers=(
        ContainerRequest(container="warm", kind=ContainerKind.INIT, request=RICH),
        ContainerRequest(container="main", kind=ContainerKind.MAIN, request=RICH),
    ),
    queue="research",
    gang_source=GangSource.ANNOTATION,
    movable=True,
)
PLAIN = PodRequest(
    dialect="native",
    containers=(ContainerRequest(container="m", kind=ContainerKind.MAIN, request=GpuRequest(memory_mib=8192)),),
)


@pytest.mark.parametrize("asked", [ASKED, PLAIN])
def test_what_was_written_is_read(asked: PodRequest) -> None:
    assert read_request(write_request(asked)) == asked


def test_a_small_request_is_a_short_annotation() -> None:
    assert write_request(PLAIN) == (
        '{"version":1,"dialect":"native","containers":[{"name":"m","memory_mib":8192}],"tenant":"default"}'
    )


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"version":1,', "", "version"),
        ('"core_percent":30', '"core_percent":101', "core_percent"),
        ('"memory_milli":500', '"memory_milli":500,"memory_mib":5', "memory is given twice"),
        ('"dialect":"hami"', '"dialect":"hami","more":1', "more"),
        ('"name":"warm"', '"name":"main"', "stands in it twice"),
        ('"isolation":"brokered"', '"isolation":"none"', "isolation"),
        ('"policy":"burst"', '"policy":"all"', "policy"),
        ('"gang":"ring",', "", "gang"),
        ('"gang":"ring"', '"gang":"a b"', "gang"),
        ('"run_time_s":90.5', '"run_time_s":1e999', "run_time_s|range"),
    ],
)
def test_a_request_with_a_wrong_field_is_refused(before: str, after: str, why: str) -> None:
    text = write_request(ASKED)
    assert before in text
    with pytest.raises(CalabashError, match=why) as refused:
        read_request(text.replace(before, after, 1))
    assert refused.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("more", ["", ',"more":1'])
def test_a_request_of_newer_admission_is_refused_with_both_versions_whatever_else_is_in_it(more: str) -> None:
    text = write_request(ASKED).replace('"version":1', '"version":2' + more)
    with pytest.raises(
        CalabashError, match=r"request of the pod has version 2; calabash .* supports version 1"
    ) as refused:
        read_request(text)
    assert refused.value.reason is Reason.VERSION_MISMATCH


def test_a_request_of_any_length_is_refused_without_being_parsed() -> None:
    with pytest.raises(CalabashError, match="bytes, at most"):
        read_request("[" * (REQUEST_BYTES_MAX + 1))


def test_a_request_that_could_not_be_read_is_not_written() -> None:
    words = tuple(f"{i:0128d}" for i in range(64))
    long = GpuRequest(selector=Selector(models=words, models_excluded=words))
    parts = tuple(ContainerRequest(container=f"c{i}", kind=ContainerKind.MAIN, request=long) for i in range(8))
    with pytest.raises(CalabashError, match="bytes, at most"):
        write_request(PodRequest(dialect="native", containers=parts))


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    with pytest.raises(CalabashError) as refused:
        read_request(text)
    assert refused.value.reason is Reason.BAD_REQUEST
