"""Tests of spilled memory of pods: from the annotation to the plan, and from the plan to the grant."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kubernetes.node_plugin.node_world import UID, planned, pod

from calabash.adapters.host.memory import memory_mib
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.node_plugin.containers.prepare import request_of
from calabash.kubernetes.node_plugin.daemon import read_settings
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.reports.publish import NodeFacts, Publisher
from calabash.kubernetes.objects.names import PLAN
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, read_plan, write_plan
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts
from calabash.kubernetes.pod_request import read_request, write_request
from calabash.model.device import Device, DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, ModeName, Slice
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.sharing.registry import fits
from calabash_testing.api_server.client import MemoryKube

GIB = 1024
SPILLING = GpuRequest(memory_mib=60 * GIB, spill_mib=30 * GIB, core_percent=40)
PLANNED = PlannedSlice(device="GPU-0", memory_mib=60 * GIB, core_percent=40, spill_mib=30 * GIB)


def asking(limits: dict[str, str], **annotations: str) -> Any:
    return {
        "metadata": {"annotations": {f"calabash.dev/{name}": text for name, text in annotations.items()}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


@pytest.mark.parametrize(
    "limits",
    [
        {"calabash.dev/memory": "60Gi", "calabash.dev/cores": "40"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "61440", "nvidia.com/gpucores": "40"},
    ],
)
def test_the_annotation_says_in_any_words_what_need_not_lie_on_the_card(limits: dict[str, str]) -> None:
    asked = translate(pod_of(asking(limits, spill="30Gi")))
    assert asked is not None
    (part,) = asked.containers
    assert part.request == SPILLING
    assert read_request(write_request(asked)) == asked


@pytest.mark.parametrize(
    ("limits", "annotations", "message"),
    [
        ({"calabash.dev/memory": "8Gi"}, {"spill": "8Gi"}, "spill 8192 MiB of 8192 MiB of memory is out of range"),
        ({"calabash.dev/cores": "40"}, {"spill": "8Gi"}, "spill 8192 MiB of 0 MiB"),
        ({"calabash.dev/memory": "8Gi"}, {"spill": "8"}, "less than 1Mi"),
        ({"calabash.dev/memory": "8Gi"}, {"spill": "much"}, "calabash.dev/spill 'much' is not an amount"),
        ({"calabash.dev/memory": "8Gi"}, {"spill": "1Gi", "mode": "mps"}, "spill needs mode vgpu"),
    ],
)
def test_what_cannot_be_spilled_is_refused(limits: dict[str, str], annotations: dict[str, str], message: str) -> None:
    with pytest.raises(CalabashError, match=message):
        translate(pod_of(asking(limits, **annotations)))


def test_a_plan_carries_what_is_spilled_and_something_lies_on_the_card() -> None:
    container = PlannedContainer(name="main", mode="vgpu", slices=(PLANNED,))
    plan = PodPlan(id="1", pod_uid=UID, node="n1", containers=(container,))
    assert read_plan(write_plan(plan)) == plan
    part = plan.containers[0].placement("n1").slices[0]
    assert (part.memory_mib, part.resident_mib) == (60 * GIB, 30 * GIB)
    with pytest.raises(CalabashError, match="spills all of its memory"):
        read_plan(write_plan(plan).replace(f'"spill_mib":{30 * GIB}', f'"spill_mib":{60 * GIB}'))


def test_the_node_grants_what_its_plan_says() -> None:
    container = PlannedContainer(name="main", mode="vgpu", slices=(PLANNED,))
    asked = request_of(container, "team")
    assert (asked.memory_mib, asked.spill_mib, asked.core_percent, asked.mode) == (60 * GIB, 30 * GIB, 40, "vgpu")


@pytest.mark.parametrize("memory", [0, 8 * GIB])
def test_a_slice_of_a_card_that_is_used_in_turns_is_planned_and_granted(memory: int) -> None:
    device = Device(uuid=DeviceUuid("GPU-0"), index=0, vendor="nvidia", model="T4", memory_mib=15 * GIB)
    answer = fits(device, None, (), GpuRequest(mode=ModeName("timeslice")))
    assert isinstance(answer, Slice)
    part = PlannedSlice(device="GPU-0", memory_mib=memory, core_percent=answer.core_percent)
    container = PlannedContainer(name="main", mode="timeslice", slices=(part,))
    plan = PodPlan(id="1", pod_uid=UID, node="n1", containers=(container,))
    read = read_plan(write_plan(plan)).containers[0]
    assert request_of(read, "team") == GpuRequest(mode=ModeName("timeslice"), memory_mib=memory or None, tenant="team")


def test_a_node_tells_what_it_gives_and_what_is_spilled_and_the_planner_hears_it() -> None:
    client = MemoryKube()
    card = Device(uuid=DeviceUuid("GPU-0"), index=0, vendor="nvidia", model="A100", memory_mib=40 * GIB, spill_mib=7)
    pods = NodePods(client, "n1")
    state = DeviceSnapshot(device=card, mode=None, held=(), allocations=())
    snapshot = NodeSnapshot(node=NodeName("n1"), devices=(state,), allocations=(), membership="kernel", slots="tmpfs")
    facts = NodeFacts(agent_version="1", driver_version="580.1", ready=True, reason="Serving", message="")
    Publisher(client, "n1").publish(snapshot, pods, facts)
    told = client.get(GPU_NODE, "n1")
    assert told is not None
    (seen,) = gpu_node_facts(told).devices
    assert seen.device.spill_mib == 7


@pytest.mark.parametrize(("word", "expected"), [("65536", 65536), ("0", 0), ("half", memory_mib() // 2 // 1024 * 1024)])
def test_an_agent_is_told_how_much_of_its_node_it_gives(word: str, expected: int) -> None:
    assert read_settings(["--node", "n1", "--spill", word]).spill_mib == expected
    assert read_settings(["--node", "n1"]).spill_mib == 0


def test_a_plan_without_it_is_written_as_before() -> None:
    assert "spill" not in pod(planned("main")).metadata.annotations[PLAN]


@pytest.mark.parametrize("word", ["lots", "-1", "9999999999"])
def test_an_agent_that_is_told_nonsense_does_not_start(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--node", "n1", f"--spill={word}"])
    assert "--spill" in capsys.readouterr().err


def test_a_refusal_says_which_reason_it_has() -> None:
    answer = fits(
        Device(uuid=DeviceUuid("GPU-0"), index=0, vendor="", model="A", memory_mib=40 * GIB), None, (), SPILLING
    )
    assert not isinstance(answer, Slice)
    assert answer.reason is Reason.NOT_PERMITTED
