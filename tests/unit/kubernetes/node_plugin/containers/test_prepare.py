"""Tests of preparing containers: each gets the slices of its own plan, whatever device IDs the kubelet gives it."""

from __future__ import annotations

import json
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs
from tests.unit.kubernetes.node_plugin.node_world import NODE, OTHER, UID, Agent, GivenPods, SlotEdits, planned, pod

from calabash.adapters.host.processes import Process
from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.core import Condition, Pod, PodStatus
from calabash.adapters.kubelet.protocol import CheckpointEntry, TokenOwner
from calabash.kubernetes.node_plugin.containers.device_id_owners import Owners
from calabash.kubernetes.node_plugin.containers.device_ids import device_name
from calabash.kubernetes.node_plugin.containers.prepare import Preparer, request_of
from calabash.kubernetes.node_plugin.containers.retry import LEAVING_S, Patience
from calabash.kubernetes.node_plugin.containers.slice_choice import ByPlan
from calabash.kubernetes.node_plugin.containers.specs import SlotSpecs
from calabash.kubernetes.objects.names import GPUS, PLANNED, REQUEST
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest, write_request
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest
from calabash.node.membership.container import container_allocation
from calabash_testing.clock import VirtualClock


class Kubelet:
    """Kubelet that assigns device IDs to containers and records the agent's answers."""

    def __init__(self, specs: Path) -> None:
        self.entries: list[CheckpointEntry] = []
        self.owners: list[TokenOwner] = []
        self.unreadable = False
        self.since_s = 0.0
        self.sandbox_process: Process | None = None
        self.refusal: CalabashError | None = None
        self.agent = Agent()
        self.clock = VirtualClock()
        self.pauses = self.room_after = 0
        self.pods = GivenPods()
        self.specs = specs
        self.preparer = Preparer(
            cast("Any", self.agent),
            Owners(self.checkpoint, lambda: self.owners),
            self.clock,
            placing=ByPlan(self.pods, NODE),
            edits=SlotEdits(),
            specs=SlotSpecs(specs, self.checkpoint),
            sandboxes=self,
            rules=self,
            patience=Patience(
                clock=self.clock,
                leaving=lambda: self.pods.any_leaves(record.id for record in self.agent.records()),
                pause=self.pause,
            ),
        )

    def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.pauses += 1
        if self.pauses == self.room_after:
            self.agent.full = False

    def sandbox_since_s(self, pod_uid: str) -> float:
        return self.since_s

    def sandbox(self, pod_uid: str) -> Process | None:
        return self.sandbox_process

    def prepared(self) -> None:
        pass

    def require(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def checkpoint(self) -> list[CheckpointEntry]:
        if self.unreadable:
            raise CalabashError("version 3 of the checkpoint is not known")
        return self.entries

    def add(self, added: Pod) -> None:
        self.pods.changed(MirrorChange(before=None, after=added))

    def admit(self, uid: str, container: str, *tokens: str) -> str:
        """Call Allocate; return the CDI name that the runtime will use."""
        answer = self.preparer.allocate(tokens)
        entry = CheckpointEntry(
            pod_uid=uid, container=container, resource=GPUS, device_ids=tokens, cdi_names=answer.cdi_names
        )
        self.entries = [e for e in self.entries if (e.pod_uid, e.container) != (uid, container)] + [entry]
        name = device_name(answer.cdi_names[0])
        assert name is not None
        return name

    def injected(self, name: str) -> str | None:
        """Return the slot that a runtime finds under a CDI name now; None if the name cannot be resolved."""
        found = []
        for file in self.specs.glob("*.json"):
            for device in json.loads(file.read_text())["devices"]:
                if device["name"] == name:
                    found += device["containerEdits"]["env"]
        assert len(found) <= 1, "a name that stands twice cannot be resolved"
        return found[0].partition("=")[2] if found else None


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path / "cdi")


def test_a_container_gets_the_slices_that_its_plan_names(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main", memory_mib=2048)))
    name = kubelet.admit(UID, "main", "slot-0001")
    assert kubelet.injected(name) is None
    kubelet.preparer.pre_start(("slot-0001",))
    slot = container_allocation(UID, "main")
    assert kubelet.injected(name) == slot
    record = kubelet.agent.held[slot]
    assert record.request.memory_mib == 2048
    assert record.request.tenant == "team"
    assert record.placement.node == NODE


def test_what_is_granted_is_on_the_account_of_the_queue_that_the_pod_was_let_in_with(kubelet: Kubelet) -> None:
    asked = PodRequest(
        dialect="native",
        queue="vision-train",
        containers=(
            ContainerRequest(container="main", kind=ContainerKind.MAIN, request=GpuRequest(queue="vision-train")),
        ),
    )
    made = pod(planned("main"))
    meta = msgspec.structs.replace(
        made.metadata, annotations={**made.metadata.annotations, REQUEST: write_request(asked)}
    )
    kubelet.add(msgspec.structs.replace(made, metadata=meta, spec=msgspec.structs.replace(made.spec, priority=-5)))
    kubelet.admit(UID, "main", "slot-0001")
    kubelet.preparer.pre_start(("slot-0001",))
    record = kubelet.agent.record(container_allocation(UID, "main"))
    assert record is not None
    assert (record.request.tenant, record.request.queue, record.request.priority) == ("team", "vision-train", -5)
    assert record.granted_at == kubelet.clock.now_s() > 0


def test_a_second_start_finds_the_same_and_changes_nothing(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main")))
    name = kubelet.admit(UID, "main", "slot-0001")
    for _ in range(3):
        kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "main")
    assert len(kubelet.agent.held) == 1


def test_a_token_that_is_used_again_never_leads_to_the_pod_before(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main")))
    before = kubelet.admit(UID, "main", "slot-0001")
    kubelet.preparer.pre_start(("slot-0001",))
    kubelet.entries.clear()
    kubelet.add(pod(planned("main", memory_mib=4096), uid=OTHER, name="p2"))
    after = kubelet.admit(OTHER, "main", "slot-0001")
    assert after != before
    assert kubelet.injected(after) is None  # a runtime that asks now is refused and asks again
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(after) == container_allocation(OTHER, "main")
    assert kubelet.injected(before) is None


def test_containers_that_share_a_token_get_each_their_own_slices(kubelet: Kubelet) -> None:
    kubelet.add(
        pod(
            planned("first", memory_mib=256),
            planned("second", memory_mib=512),
            planned("main"),
            init=("first", "second"),
        )
    )
    names = {c: kubelet.admit(UID, c, "slot-0001") for c in ("first", "second", "main")}
    seen = []
    for _ in names:
        kubelet.preparer.pre_start(("slot-0001",))
        seen.append({c for c, name in names.items() if kubelet.injected(name) is not None})
    assert seen == [{"first"}, {"first", "second"}, {"first", "second", "main"}]
    for container, name in names.items():
        assert kubelet.injected(name) == container_allocation(UID, container)
    main = kubelet.agent.instead_of[container_allocation(UID, "main")]
    assert main == {container_allocation(UID, c) for c in ("first", "second")}


def test_what_runs_for_a_container_is_given_for_as_long_as_its_sandbox_and_not_before_there_is_one(
    kubelet: Kubelet,
) -> None:
    kubelet.add(pod(planned("main", mode="brokered")))
    kubelet.admit(UID, "main", "slot-0001")
    with pytest.raises(CalabashError, match="has no process yet"):
        kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.agent.held == {}
    kubelet.sandbox_process = Process(pid=7, start_time=99)
    kubelet.preparer.pre_start(("slot-0001",))
    (held,) = kubelet.agent.held.values()
    assert (held.client_pid, held.client_start_time, held.request.mode) == (7, 99, "brokered")


def test_an_init_container_that_has_ended_well_is_prepared_no_more(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("first"), planned("main"), init=("first",), ended=("first",)))
    kubelet.admit(UID, "first", "slot-0001")
    name = kubelet.admit(UID, "main", "slot-0001")
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "main")
    assert set(kubelet.agent.held) == {container_allocation(UID, "main")}


def test_an_init_container_is_prepared_again_in_a_sandbox_that_was_made_again(kubelet: Kubelet) -> None:
    both = (planned("first"), planned("main"))
    kubelet.add(pod(*both, init=("first",), ended=("first",), at="2026-11-22T03:00:00Z"))
    name = kubelet.admit(UID, "first", "slot-0001")
    kubelet.admit(UID, "main", "slot-0001")
    kubelet.since_s = datetime.fromisoformat("2026-11-22T03:00:30Z").timestamp()
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "first")


def test_a_sidecar_counts_beside_the_main_container(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("side"), planned("main"), sidecars=("side",)))
    kubelet.admit(UID, "side", "slot-0001")
    kubelet.admit(UID, "main", "slot-0002")
    kubelet.preparer.pre_start(("slot-0001",))
    kubelet.preparer.pre_start(("slot-0002",))
    assert kubelet.agent.instead_of[container_allocation(UID, "main")] == frozenset()


def test_pod_resources_serves_where_the_checkpoint_is_of_another_version(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main")))
    name = kubelet.admit(UID, "main", "slot-0001")
    kubelet.unreadable = True
    kubelet.owners = [
        TokenOwner(namespace="team", pod="p1", container="main", resource=GPUS, device_ids=("slot-0001",))
    ]
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "main")


def test_pod_resources_alone_never_gives_an_init_container_what_is_the_main_ones(kubelet: Kubelet) -> None:
    containers = (planned("first", memory_mib=256), planned("main"))
    kubelet.add(pod(*containers, init=("first",)))
    names = {c: kubelet.admit(UID, c, "slot-0001") for c in ("first", "main")}
    kubelet.unreadable = True
    kubelet.owners = [
        TokenOwner(namespace="team", pod="p1", container="main", resource=GPUS, device_ids=("slot-0001",))
    ]
    with pytest.raises(
        CalabashError, match="init container first of pod team/p1 may have the device IDs of container main"
    ):
        kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.agent.held == {}
    kubelet.add(pod(*containers, init=("first",), ended=("first",)))
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(names["main"]) == container_allocation(UID, "main")
    assert kubelet.injected(names["first"]) is None  # an init container that is run again waits for the checkpoint


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pod(), "has no plan"),
        (pod(planned("main"), node="n2"), "is for pod .* on node n2"),
        (pod(planned("other")), "has 0 devices for container main"),
        (pod(planned("main", devices=2)), "has 2 devices for container main, its spec asks for 1"),
        (pod(planned("main"), plan="{}"), "cannot be read"),
    ],
)
def test_a_pod_without_a_plan_of_its_own_is_refused_and_nothing_is_granted(
    kubelet: Kubelet, made: Pod, why: str
) -> None:
    kubelet.add(made)
    name = kubelet.admit(UID, "main", "slot-0001")
    with pytest.raises(CalabashError, match=why) as refused:
        kubelet.preparer.pre_start(("slot-0001",))
    assert refused.value.hint
    assert kubelet.injected(name) is None
    assert kubelet.agent.held == {}


def test_a_pod_that_the_planner_refused_where_it_was_bound_is_refused_in_the_planners_words(kubelet: Kubelet) -> None:
    why = "bound to n1 by others than the planner: n1 has 0 of 2 devices idle; hint: delete it"
    made = pod()
    condition = Condition(type=PLANNED, status="False", reason="NoCapacity", message=why)
    kubelet.add(msgspec.structs.replace(made, status=PodStatus(phase="Pending", conditions=(condition,))))
    kubelet.admit(UID, "main", "slot-0001")
    with pytest.raises(CalabashError) as refused:
        kubelet.preparer.pre_start(("slot-0001",))
    assert str(refused.value) == f"pod team/p1 has no plan: {why}"
    assert kubelet.agent.held == {}


def test_a_pod_that_was_bound_before_its_plan_was_written_is_waited_for(kubelet: Kubelet) -> None:
    pods = GivenPods(plan_wait_s=60.0)
    kubelet.pods = pods
    kubelet.preparer._placing = ByPlan(pods, NODE)
    kubelet.add(pod())
    name = kubelet.admit(UID, "main", "slot-0001")
    later = threading.Timer(0.1, lambda: kubelet.add(pod(planned("main"))))
    later.start()
    kubelet.preparer.pre_start(("slot-0001",))
    later.join()
    assert kubelet.injected(name) == container_allocation(UID, "main")


def test_a_plan_that_was_made_for_another_pod_is_refused(kubelet: Kubelet) -> None:
    stolen = pod(planned("main")).metadata.annotations
    thief = pod(planned("main"), uid=OTHER, plan=next(iter(stolen.values())))
    kubelet.add(thief)
    kubelet.admit(OTHER, "main", "slot-0001")
    with pytest.raises(CalabashError, match=f"is for pod {UID}"):
        kubelet.preparer.pre_start(("slot-0001",))


def test_no_room_is_said_and_asked_again(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main")))
    name = kubelet.admit(UID, "main", "slot-0001")
    kubelet.agent.full = True
    with pytest.raises(CalabashError) as refused:
        kubelet.preparer.pre_start(("slot-0001",))
    assert refused.value.reason is Reason.NO_MEMORY
    kubelet.agent.full = False
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "main")


@pytest.mark.parametrize("going", ["gone", "ended", "being deleted"])
def test_who_comes_while_another_leaves_waits_for_that_one(kubelet: Kubelet, going: str) -> None:
    """The call waits itself, because a kubelet repeats a failed call after ten seconds at the earliest."""
    leaving = pod(planned("main"), uid=OTHER, name="p0")
    kubelet.add(leaving)
    kubelet.admit(OTHER, "main", "slot-0001")
    kubelet.preparer.pre_start(("slot-0001",))
    if going == "gone":
        kubelet.pods.changed(MirrorChange(before=leaving, after=None))
    elif going == "ended":
        kubelet.add(pod(planned("main"), uid=OTHER, name="p0", phase="Succeeded"))
    else:
        meta = structs.replace(leaving.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        kubelet.add(structs.replace(leaving, metadata=meta))
    kubelet.pods.complete = True
    kubelet.agent.full, kubelet.room_after = True, 7
    kubelet.add(pod(planned("main")))
    name = kubelet.admit(UID, "main", "slot-0002")
    kubelet.preparer.pre_start(("slot-0002",))
    assert kubelet.injected(name) == container_allocation(UID, "main")
    assert kubelet.pauses == 7
    kubelet.agent.full, kubelet.room_after = True, 0
    began_ns = kubelet.clock.monotonic_ns()
    with pytest.raises(CalabashError, match="is free, asked"):
        kubelet.preparer.pre_start(("slot-0002",))
    assert LEAVING_S <= (kubelet.clock.monotonic_ns() - began_ns) / 1e9 < LEAVING_S + 1, "it is not waited for for ever"


def test_who_stays_is_not_waited_for(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main"), uid=OTHER, name="p0", phase="Running"))
    kubelet.admit(OTHER, "main", "slot-0001")
    kubelet.preparer.pre_start(("slot-0001",))
    kubelet.pods.complete = True
    kubelet.agent.full = True
    kubelet.add(pod(planned("main")))
    kubelet.admit(UID, "main", "slot-0002")
    with pytest.raises(CalabashError, match="is free, asked"):
        kubelet.preparer.pre_start(("slot-0002",))
    assert kubelet.pauses == 0


def test_a_pod_is_admitted_while_nothing_is_given_out_and_its_start_says_why_until_it_can(kubelet: Kubelet) -> None:
    """An error of Allocate would fail the pod for good; an error of PreStartContainer is retried."""
    name = kubelet.admit(UID, "main", "slot-0001")
    with pytest.raises(CalabashError, match="is not known to the agent of this node") as refused:
        kubelet.preparer.pre_start(("slot-0001",))
    assert "tries again" in refused.value.hint
    kubelet.add(pod(planned("main")))
    kubelet.refusal = CalabashError("another one is there", reason=Reason.FOREIGN_PLUGIN, hint="keep it off")
    with pytest.raises(CalabashError, match="another one is there") as refused:
        kubelet.preparer.pre_start(("slot-0001",))
    assert refused.value.hint == "keep it off"
    assert kubelet.agent.held == {}
    kubelet.refusal = None
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "main")


def test_what_is_held_starts_again_while_nothing_new_is_given_out(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main")))
    name = kubelet.admit(UID, "main", "slot-0001")
    kubelet.preparer.pre_start(("slot-0001",))
    kubelet.refusal = CalabashError("another one is there", reason=Reason.FOREIGN_PLUGIN)
    kubelet.preparer.pre_start(("slot-0001",))
    assert kubelet.injected(name) == container_allocation(UID, "main")


def test_tokens_that_nobody_holds_are_refused(kubelet: Kubelet) -> None:
    with pytest.raises(CalabashError, match="lists no container"):
        kubelet.preparer.pre_start(("slot-0001",))


def test_the_whole_card_needs_no_amount(kubelet: Kubelet) -> None:
    kubelet.add(pod(planned("main", devices=2, memory_mib=16384, mode="exclusive")))
    kubelet.admit(UID, "main", "slot-0001", "slot-0002")
    kubelet.preparer.pre_start(("slot-0002", "slot-0001"))
    request = kubelet.agent.held[container_allocation(UID, "main")].request
    assert (request.count, request.memory_mib, request.core_percent) == (2, None, 100)


def test_a_share_of_an_instance_is_asked_for_by_its_amounts_and_an_instance_by_its_profile() -> None:
    part = PlannedSlice(device="GPU-0", memory_mib=8192, core_percent=30, profile="3g.40gb", start=4)
    share = request_of(PlannedContainer(name="c", mode="mps", slices=(part,)), "team")
    assert (share.mode, share.mig, share.memory_mib, share.core_percent) == ("mps", "", 8192, 30)
    instance = request_of(PlannedContainer(name="c", mode="mig", slices=(part,)), "team")
    assert (instance.mode, instance.mig, instance.memory_mib) == ("mig", "3g.40gb", None)
