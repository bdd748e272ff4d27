"""Tests of the dialects of containers: detection, translation, and refusals in the terms of the dialect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.kubernetes.dialects.pod import AskingPod, pod_of, read_pod
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.pod_request import ContainerKind, GangSource, PodRequest, read_request, write_request
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest, Isolation, ModeName, Selector

BURST, BEST_EFFORT = ComputePolicy.BURST, ComputePolicy.BEST_EFFORT


def pod(
    limits: dict[str, Any] | None = None,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> AskingPod:
    container = {"name": "main", "resources": {"limits": limits or {}}}
    return pod_of(
        {
            "metadata": {"namespace": "team", "annotations": annotations, "labels": labels},
            "spec": {"containers": [container], **spec},
        }
    )


def asked_of(pod: AskingPod) -> PodRequest:
    asked = translate(pod)
    assert asked is not None
    return asked


def request_of(limits: dict[str, Any], **more: Any) -> GpuRequest:
    (part,) = asked_of(pod(limits, **more)).containers
    return part.request


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"calabash.dev/gpus": 1}, {}),
        ({"calabash.dev/memory": "8Gi"}, {"memory_mib": 8192, "policy": BEST_EFFORT}),
        ({"calabash.dev/memory": "8Gi", "calabash.dev/cores": "100"}, {"memory_mib": 8192}),
        ({"calabash.dev/cores": "25"}, {"core_percent": 25}),
        ({"calabash.dev/gpus": "2", "calabash.dev/memory": "8G"}, {"count": 2, "memory_mib": 7630, "policy": BEST_EFFORT}),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": 30}, {"memory_milli": 1000, "core_percent": 30}),
        ({"nvidia.com/gpumem": 4000}, {"memory_mib": 4000, "policy": BEST_EFFORT}),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}, {"memory_milli": 1000}),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9, "nvidia.com/gpucores": 0}, {"memory_mib": 9, "policy": BEST_EFFORT}),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9, "nvidia.com/gpucores": 5, "nvidia.com/priority": 1},
            {"memory_mib": 9, "core_percent": 5, "policy": BEST_EFFORT},
        ),
        ({"volcano.sh/vgpu-number": 1}, {"memory_milli": 1000}),
        ({"volcano.sh/vgpu-memory-percentage": 25, "volcano.sh/vgpu-cores": 10}, {"memory_milli": 250, "core_percent": 10}),
        ({"tke.cloud.tencent.com/qgpu-core": 300}, {"count": 3}),
        ({"tke.cloud.tencent.com/qgpu-core": 200, "tke.cloud.tencent.com/qgpu-memory": 64}, {"count": 2}),
        (
            {"tke.cloud.tencent.com/qgpu-core": 121, "tke.cloud.tencent.com/qgpu-memory": 31},
            {"count": 2, "core_percent": 60, "memory_mib": 15 * 1024},
        ),
        (
            {"tke.cloud.tencent.com/qgpu-core-greedy": 40, "tke.cloud.tencent.com/qgpu-memory": 2},
            {"core_percent": 40, "memory_mib": 2048, "policy": BEST_EFFORT},
        ),
        ({"tke.cloud.tencent.com/qgpu-core": 35}, {"core_percent": 35}),
        ({"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 10}, {"count": 2}),
        ({"tencent.com/vcuda-core": 50}, {"core_percent": 50}),
        ({"aliyun.com/gpu-count": 2}, {"count": 2}),
        ({"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 8}, {"count": 2, "memory_mib": 4096, "policy": BEST_EFFORT}),
        ({"nvidia.com/mps-memory": 4}, {"memory_mib": 4096, "policy": BEST_EFFORT}),
        ({"nvidia.com/mps-core": 20}, {"core_percent": 20}),
        ({"bitfusion.io/gpu-num": 2}, {"count": 2, "memory_milli": 1000}),
        ({"bitfusion.io/gpu-percent": 25}, {"memory_milli": 250, "core_percent": 25, "policy": BURST}),
    ],
)  # fmt: skip
def test_amounts_mean_what_they_mean_in_their_own_system(limits: dict[str, Any], expected: dict[str, Any]) -> None:
    assert request_of(limits) == GpuRequest(tenant="team", **expected)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"calabash.dev/gpus": 65}, "gpus 65 is out of range"),
        ({"calabash.dev/cores": 101}, "calabash.dev/cores 101 is out of range"),
        ({"calabash.dev/memory": "8192"}, "8192 bytes, less than 1Mi"),
        ({"calabash.dev/gpus": "1500m"}, "calabash.dev/gpus 1.5 is not a whole number"),
        ({"calabash.dev/gpus": "many"}, "'many' is not an amount"),
        ({"calabash.dev/gpus": -1}, "-1 is not a whole number"),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 1}, "both asked"),
        ({"nvidia.com/mig-junk": 1}, "is not a MIG profile"),
        ({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-2g.20gb": 1}, "both asked"),
        ({"nvidia.com/gpumem": 5, "nvidia.com/gpumem-percentage": 5}, "both asked"),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 101}, "101 is out of range"),
        ({"tke.cloud.tencent.com/qgpu-core": 5, "tke.cloud.tencent.com/qgpu-core-greedy": 5}, "both asked"),
        ({"tke.cloud.tencent.com/qgpu-core": 180, "tke.cloud.tencent.com/qgpu-memory": 1}, "cannot be divided among 2"),
        ({"tencent.com/vcuda-core": 150}, "neither a fraction of one card nor a multiple of 100"),
        ({"aliyun.com/gpu-count": 3, "aliyun.com/gpu-mem": 8}, "cannot be divided evenly among 3"),
        ({"aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 5}, "one card only"),
        ({"bitfusion.io/gpu-percent": 5, "bitfusion.io/gpu-memory": "8Gi"}, "both asked"),
        ({"bitfusion.io/gpu-num": 1, "bitfusion.io/gpu-amount": 2}, "both asked"),
        ({"bitfusion.io/gpu-memory": 800}, "less than 1Mi"),
        ({"calabash.dev/gpus": 1, "nvidia.com/gpu": 1}, "resource names of Calabash and of NVIDIA"),
        ({"nvidia.com/gpumem": 5, "nvidia.com/gpu.shared": 1}, "resource names of HAMi and of NVIDIA"),
        ({"volcano.sh/vgpu-number": 1, "nvidia.com/gpumem": 5}, "resource names of HAMi and of Volcano"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_container_its_numbers_and_a_hint(
    limits: dict[str, Any], why: str
) -> None:
    with pytest.raises(CalabashError, match=f"^container main: .*{why}") as refused:
        translate(pod(limits))
    assert refused.value.hint


def test_a_limit_and_a_request_that_differ_are_refused_and_so_is_a_request_alone() -> None:
    def tree(resources: dict[str, Any]) -> AskingPod:
        return pod_of({"spec": {"containers": [{"name": "main", "resources": resources}]}})

    assert translate(tree({"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": "1"}})) is not None
    with pytest.raises(CalabashError, match="the limit and the request differ"):
        translate(tree({"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}))
    with pytest.raises(CalabashError, match="requested without a limit"):
        translate(tree({"requests": {"nvidia.com/gpu": 1}}))


@pytest.mark.parametrize(
    "limits", [{}, {"cpu": "2", "memory": "1Gi"}, {"nvidia.com/gpu": 0}, {"nvidia.com/hostdev": 1}, {"cpu": "junk"}]
)
def test_a_pod_that_asks_for_no_device_is_left_alone(limits: dict[str, Any]) -> None:
    assert translate(pod(limits)) is None


def test_containers_ask_each_for_itself_in_the_order_in_which_they_start() -> None:
    tree = {
        "spec": {
            "initContainers": [
                {"name": "warm", "resources": {"limits": {"nvidia.com/gpu": 1}}},
                {"name": "watch", "restartPolicy": "Always", "resources": {"limits": {"calabash.dev/memory": "1Gi"}}},
            ],
            "containers": [
                {"name": "web", "resources": {"limits": {"cpu": 1}}},
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}}},
            ],
        }
    }
    asked = asked_of(pod_of(tree))
    assert [(part.container, part.kind) for part in asked.containers] == [
        ("warm", ContainerKind.INIT),
        ("watch", ContainerKind.SIDECAR),
        ("main", ContainerKind.MAIN),
    ]
    assert asked.dialect == "hami+native+nvidia"


def test_the_annotations_of_kai_hold_for_one_container_of_a_pod_that_is_meant_for_it() -> None:
    tree: dict[str, Any] = {
        "metadata": {"annotations": {"gpu-fraction": "0.125"}, "labels": {"kai.scheduler/queue": "team"}},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
    }
    (part,) = asked_of(pod_of(tree)).containers
    assert part.container == "a"
    assert part.request == GpuRequest(memory_milli=125, core_percent=12, policy=BURST, queue="team")
    tree["metadata"]["annotations"]["gpu-fraction-container-name"] = "b"
    assert [part.container for part in asked_of(pod_of(tree)).containers] == ["b"]
    tree["metadata"]["labels"] = {}
    assert translate(pod_of(tree)) is None
    tree["spec"]["schedulerName"] = "kai-scheduler"
    assert asked_of(pod_of(tree)).queue == ""
    tree["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    with pytest.raises(CalabashError, match="resource names of NVIDIA device plug-in and of KAI"):
        translate(pod_of(tree))


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"gpu-fraction": "1.5"}, "not a fraction"),
        ({"gpu-fraction": "0"}, "not a fraction"),
        ({"gpu-fraction": "1/2"}, "not a fraction"),
        ({"gpu-fraction": "0.5", "gpu-memory": "5"}, "both asked"),
        ({"gpu-memory": "2Gi"}, "gpu-memory '2Gi' is out of range"),
        ({"gpu-memory": "5", "gpu-fraction-num-devices": "0"}, "gpu-fraction-num-devices '0'"),
    ],
)
def test_fractions_that_are_none_are_refused(annotations: dict[str, str], why: str) -> None:
    with pytest.raises(CalabashError, match=why):
        translate(pod(annotations=annotations, schedulerName="kai-scheduler"))


def test_devices_of_hami_are_chosen_and_excluded_by_model_and_by_uuid() -> None:
    annotations = {
        "nvidia.com/use-gputype": "A100, H100",
        "nvidia.com/nouse-gputype": "PCIe",
        "nvidia.com/use-gpuuuid": "GPU-1,GPU-2",
        "nvidia.com/nouse-gpuuuid": "GPU-2",
    }
    asked = asked_of(pod({"nvidia.com/gpu": 1}, annotations=annotations))
    assert asked.dialect == "hami"
    assert asked.containers[0].request.selector == Selector(
        models=("A100", "H100"),
        models_excluded=("PCIe",),
        uuids=("GPU-1", "GPU-2"),  # type: ignore[arg-type]
        uuids_excluded=("GPU-2",),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("limits", "annotation"),
    [({"nvidia.com/gpu": 1}, "nvidia.com/vgpu-mode"), ({"volcano.sh/vgpu-number": 1}, "volcano.sh/vgpu-mode")],
)
def test_mig_asked_by_annotation_is_an_instance_with_the_amounts(limits: dict[str, Any], annotation: str) -> None:
    asked = translate(pod(limits, annotations={annotation: "mig"}))
    assert asked is not None
    assert asked.containers[0].request.mode == "mig"


def test_a_media_profile_has_a_dot_in_the_name_of_its_resource() -> None:
    asked = translate(pod({"nvidia.com/mig-1g.10gb.me": 2}))
    assert asked is not None
    request = asked.containers[0].request
    assert (request.count, request.mig, request.mode) == (2, "1g.10gb+me", "mig")


def test_a_part_of_an_instance_is_asked_by_nvidias_name_for_it() -> None:
    asked = translate(pod({"nvidia.com/mig-1c.3g.40gb": 1}))
    assert asked is not None
    assert (asked.containers[0].request.mig, asked.containers[0].request.mode) == ("1c.3g.40gb", "mig")


@pytest.mark.parametrize(
    ("name", "word", "limits", "policy"),
    [
        ("tencent.com/vcuda-core-limit", "60", {"tencent.com/vcuda-core": 30}, BURST),
        ("tencent.com/vcuda-core-limit", "30", {"tencent.com/vcuda-core": 30}, ComputePolicy.FIXED),
        ("tke.cloud.tencent.com/app-class", "online", {"tke.cloud.tencent.com/qgpu-core": 30}, BURST),
        ("tke.cloud.tencent.com/app-class", "offline", {"tke.cloud.tencent.com/qgpu-core": 30}, BEST_EFFORT),
    ],
)
def test_annotations_that_lend_idle_time_become_a_policy(
    name: str, word: str, limits: dict[str, Any], policy: ComputePolicy
) -> None:
    assert request_of(limits, annotations={name: word}).policy is policy


@pytest.mark.parametrize("limit", ["20", "101", "x", "٣٥"])
def test_a_limit_of_vcuda_below_the_amount_or_above_a_card_is_refused(limit: str) -> None:
    with pytest.raises(CalabashError, match="is not between"):
        translate(pod({"tencent.com/vcuda-core": 30}, annotations={"tencent.com/vcuda-core-limit": limit}))


@pytest.mark.parametrize("label", ["0", "65", "x", "-1"])
def test_a_label_with_no_number_of_cards_is_refused(label: str) -> None:
    with pytest.raises(CalabashError, match=r"label aliyun\.com/gpu-count"):
        translate(pod({"aliyun.com/gpu-mem": 8}, labels={"aliyun.com/gpu-count": label}))


def test_our_annotations_say_more_about_requests_in_any_words() -> None:
    annotations = {
        "calabash.dev/mode": "vgpu",
        "calabash.dev/policy": "burst",
        "calabash.dev/models": "H100, H200",
        "calabash.dev/gang": "ring",
        "calabash.dev/gang-size": "8",
        "calabash.dev/run-time": "1h30m",
        "calabash.dev/movable": "true",
    }
    asked = asked_of(
        pod(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9, "nvidia.com/gpucores": 5},
            annotations=annotations,
            labels={"calabash.dev/queue": "research"},
            priority=1000,
        )
    )
    assert asked.containers[0].request == GpuRequest(
        memory_mib=9,
        core_percent=5,
        mode=ModeName("vgpu"),
        policy=BURST,
        priority=1000,
        tenant="team",
        queue="research",
        gang="ring",
        gang_size=8,
        selector=Selector(models=("H100", "H200")),
        run_time_s=5400.0,
    )
    assert (asked.queue, asked.gang_source, asked.movable) == ("research", GangSource.ANNOTATION, True)


@pytest.mark.parametrize("level", Isolation)
def test_isolation_is_asked_by_its_name(level: Isolation) -> None:
    said = {"calabash.dev/isolation": level.name.lower()}
    assert request_of({"calabash.dev/gpus": 1}, annotations=said).isolation is level


@pytest.mark.parametrize(
    ("annotations", "why", "reason"),
    [
        ({"calabash.dev/mode": "magic"}, "sharing mode 'magic' is not known", Reason.UNKNOWN_MODE),
        (
            {"calabash.dev/mode": "vgpu", "calabash.dev/isolation": "hardware"},
            "isolates at level",
            Reason.MODE_CONFLICT,
        ),
        ({"calabash.dev/isolation": "total"}, "isolation 'total'", Reason.BAD_REQUEST),
        ({"calabash.dev/policy": "fair"}, "policy 'fair' is not known", Reason.BAD_REQUEST),
        ({"calabash.dev/gang": "g"}, "without calabash.dev/gang-size", Reason.BAD_REQUEST),
        ({"calabash.dev/gang-size": "4"}, "without calabash.dev/gang", Reason.BAD_REQUEST),
        ({"calabash.dev/gang": "a b", "calabash.dev/gang-size": "4"}, "gang 'a b' is not usable", Reason.BAD_REQUEST),
        ({"calabash.dev/gang": "g", "calabash.dev/gang-size": "0"}, "gang size 0", Reason.BAD_REQUEST),
        ({"calabash.dev/gang": "g", "calabash.dev/gang-size": "four"}, "'four' is not a number", Reason.BAD_REQUEST),
        ({"calabash.dev/run-time": "soon"}, "'soon' is not a duration", Reason.BAD_REQUEST),
        ({"calabash.dev/run-time": "9" * 400}, "has 400 characters", Reason.BAD_REQUEST),
        ({"calabash.dev/movable": "yes"}, "neither true nor false", Reason.BAD_REQUEST),
        ({"calabash.dev/models": "m," * 65}, "too long", Reason.BAD_REQUEST),
        ({"calabash.dev/queue": "a b"}, "queue 'a b' is not usable", Reason.BAD_REQUEST),
    ],
)
def test_an_annotation_that_cannot_be_kept_is_refused(annotations: dict[str, str], why: str, reason: Reason) -> None:
    with pytest.raises(CalabashError, match=why) as refused:
        translate(pod({"calabash.dev/memory": "8Gi"}, annotations=annotations))
    assert refused.value.reason is reason
    assert refused.value.hint


def test_a_mode_that_cannot_give_the_amounts_is_refused_and_memory_of_a_card_in_turns_is_a_cap() -> None:
    turns = {"calabash.dev/mode": "timeslice"}
    with pytest.raises(CalabashError, match="timeslice cannot give these amounts") as refused:
        translate(pod({"calabash.dev/cores": "40"}, annotations=turns))
    assert refused.value.reason is Reason.MODE_CONFLICT
    capped = request_of({"calabash.dev/memory": "8Gi"}, annotations=turns)
    assert (capped.mode, capped.memory_mib) == ("timeslice", 8192)


@pytest.mark.parametrize("name", ["nvidia.com/use-gputype", "nvidia.com/nouse-gpuuuid", "calabash.dev/models"])
def test_a_list_that_is_megabytes_of_nothing_is_refused_before_it_is_looked_at(name: str) -> None:
    with pytest.raises(CalabashError, match=f"{name} has 3000000 characters"):
        translate(pod({"nvidia.com/gpu": 1}, annotations={name: "," * 3_000_000}))


@pytest.mark.parametrize(
    ("more", "source"),
    [
        ({"schedulingGroup": {"podGroupName": "ring"}}, GangSource.WORKLOAD),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "ring"}}, GangSource.COSCHEDULING),
        ({"labels": {"pod-group.scheduling.sigs.k8s.io": "ring"}}, GangSource.COSCHEDULING),
        ({"annotations": {"scheduling.k8s.io/group-name": "ring"}}, GangSource.VOLCANO),
    ],
)
def test_a_pod_group_names_the_gang_and_its_size_is_left_open(more: dict[str, Any], source: GangSource) -> None:
    asked = asked_of(pod({"calabash.dev/gpus": 1}, **more))
    request = asked.containers[0].request
    assert (asked.gang_source, request.gang, request.gang_size) == (source, "ring", 1)


@pytest.mark.parametrize(
    ("more", "queue"),
    [
        ({}, ""),
        ({"labels": {"calabash.dev/queue": "a", "kai.scheduler/queue": "b"}}, "a"),
        ({"annotations": {"calabash.dev/queue": "a"}}, "a"),
        ({"labels": {"kai.scheduler/queue": "b"}}, "b"),
        ({"labels": {"runai/queue": "b"}}, "b"),
        ({"annotations": {"scheduling.volcano.sh/queue-name": "b"}}, "b"),
    ],
)
def test_the_queue_is_the_pods_own_or_left_to_its_namespace(more: dict[str, Any], queue: str) -> None:
    asked = asked_of(pod({"nvidia.com/gpu": 1}, **more))
    assert (asked.queue, asked.containers[0].request.queue) == (queue, queue or "default")


def test_containers_of_one_name_are_refused() -> None:
    gpu = {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    with pytest.raises(CalabashError, match="used twice"):
        translate(pod_of({"spec": {"containers": [gpu, gpu]}}))


NAMES = sorted({name for dialect in DIALECTS for name in dialect.resources} | {"nvidia.com/mig-1g.5gb", "cpu"})
WORDS = sorted(
    {name for dialect in DIALECTS for name in dialect.annotations}
    | {f"calabash.dev/{word}" for word in ("mode", "policy", "isolation", "models", "gang", "gang-size", "run-time", "movable")}
    | {"kai.scheduler/queue", "calabash.dev/queue", "scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group"}
)  # fmt: skip
amounts = st.one_of(
    st.integers(-1, 300), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["1", "30", "8Gi", "1500m", "5e9"])
)  # fmt: skip
said = st.dictionaries(
    st.sampled_from(WORDS),
    st.one_of(st.text(max_size=8), st.sampled_from(["0.5", "2", "true", "vgpu", "timeslice", "burst", "hardware", "main"])),
    max_size=4,
)  # fmt: skip
container = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "side", ""]) | st.text(max_size=3)},
    optional={
        "resources": st.fixed_dictionaries(
            {}, optional={key: st.dictionaries(st.sampled_from(NAMES), amounts, max_size=4) for key in ("limits", "requests")}
        ),
        "restartPolicy": st.sampled_from(["Always", "Never"]),
    },
)  # fmt: skip
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({}, optional={"annotations": said, "labels": said, "namespace": st.text(max_size=4)}),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(container, max_size=3)},
            optional={
                "initContainers": st.lists(container, max_size=2),
                "schedulerName": st.sampled_from(["kai-scheduler", "volcano"]),
                "priority": st.integers(),
            },
        ),
    }
)  # fmt: skip


@settings(max_examples=examples(400))
@given(pods)
def test_no_pod_makes_it_raise_anything_but_an_error_for_people_and_what_is_understood_can_be_written(
    tree: Any,
) -> None:
    without_hint: list[CalabashError] = []
    try:
        asked = translate(pod_of(tree))
    except CalabashError as error:
        without_hint = [] if error.hint else [error]
        asked = None
    assert without_hint == []
    if asked is not None:
        assert read_request(write_request(asked)) == asked


@given(st.binary(max_size=100))
def test_no_bytes_make_the_reader_of_pods_fail_otherwise(raw: bytes) -> None:
    with pytest.raises(CalabashError, match="the pod cannot be read"):
        read_pod(raw + b"[")


def test_more_memory_than_a_plan_can_name_is_refused() -> None:
    limits = {"aliyun.com/gpu-mem": "8Gi"}  # eight times 2^30 GiB: the user took the count for an amount
    with pytest.raises(CalabashError, match="exceed the limit of") as refused:
        translate(pod(limits))
    assert refused.value.reason is Reason.TOO_LARGE
