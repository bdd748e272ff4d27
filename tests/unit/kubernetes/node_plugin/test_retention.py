"""Tests of retention: the allocation of a pod is retained while one of its containers may run again, and not longer."""

from __future__ import annotations

import os
from datetime import datetime

from tests.unit.kubernetes.node_plugin.node_world import OTHER, UID, GivenPods, planned, pod

from calabash.adapters.host.processes import Process, identify
from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.node_plugin.retention import PodTenure
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.request import GpuRequest, ModeName, Placement
from calabash.node.membership.container import container_allocation


class World:
    def __init__(self, *known: Pod) -> None:
        self.pods = GivenPods()
        self.since_s = 0.0
        self.tenure = PodTenure(self.pods, lambda _uid: self.since_s)
        for one in known:
            self.observe(one)
        self.pods.complete = True

    def observe(self, after: Pod) -> None:
        self.pods.changed(MirrorChange(before=None, after=after))

    def retains(self, container: str, uid: str = UID) -> bool:
        return self.tenure.retains(record(container, uid), 10**12)


def record(container: str, uid: str = UID, sandbox: Process | None = None) -> AllocationRecord:
    """Return the record of a container's allocation; ``sandbox``: the process of the sandbox for which it was granted."""
    return AllocationRecord(
        id=container_allocation(uid, container),
        state=AllocationState.RUNNING,
        request=GpuRequest(),
        placement=Placement(node=NodeName("n1"), mode=ModeName("vgpu"), slices=()),
        client_pid=sandbox.pid if sandbox is not None else 0,
        client_start_time=sandbox.start_time if sandbox is not None else 0,
    )


def test_a_pod_keeps_what_it_has_until_it_has_ended_or_is_gone() -> None:
    world = World(pod(planned("main"), phase="Running"))
    assert world.retains("main")
    assert not world.retains("main", OTHER)
    world.observe(pod(planned("main"), phase="Succeeded"))
    assert not world.retains("main")
    world = World(pod(planned("main"), phase="Running"))
    world.pods.changed(MirrorChange(before=pod(planned("main")), after=None))
    assert not world.retains("main")


def test_what_runs_for_a_pod_is_over_with_its_sandbox_or_when_the_pod_has_ended() -> None:
    world = World(pod(planned("main"), phase="Running"))
    here = identify(os.getpid())
    assert here is not None
    gone = Process(pid=here.pid, start_time=here.start_time + 1)
    assert not world.tenure.is_abandoned(record("main"))
    assert not world.tenure.is_abandoned(record("main", sandbox=here))
    assert world.tenure.is_abandoned(record("main", sandbox=gone)), "before the API server has heard of it"
    assert world.retains("main"), "its room is kept, for the pod starts again"
    world.observe(pod(planned("main"), phase="Failed"))
    assert world.tenure.is_abandoned(record("main", sandbox=here))


def test_before_the_pods_are_known_everything_is_kept() -> None:
    world = World()
    world.pods.complete = False
    assert world.retains("main")
    world.pods.complete = True
    assert not world.retains("main")


def test_an_init_container_gives_back_when_it_has_ended_well_or_the_main_one_runs() -> None:
    both = (planned("first"), planned("main"))
    world = World(pod(*both, init=("first",)))
    assert world.retains("first")
    world.observe(pod(*both, init=("first",), ended=("first",)))
    assert not world.retains("first")
    assert world.retains("main")
    world.observe(pod(*both, init=("first",), running=("main",)))
    assert not world.retains("first")


def test_a_sidecar_keeps_what_it_has_while_the_main_container_runs() -> None:
    world = World(pod(planned("side"), planned("main"), sidecars=("side",), running=("main",)))
    assert world.retains("side")


def test_a_pod_may_start_until_it_has_ended_or_is_gone_and_as_long_as_it_is_not_known() -> None:
    world = World(pod(planned("main"), phase="Running"))
    assert world.pods.may_start(UID)
    assert not world.pods.may_start(OTHER)
    world.pods.complete = False
    assert world.pods.may_start(OTHER)
    world.pods.complete = True
    world.observe(pod(planned("main"), phase="Succeeded"))
    assert not world.pods.may_start(UID)


def test_an_init_container_of_an_earlier_sandbox_runs_again_and_keeps_what_it_has() -> None:
    both = (planned("first"), planned("main"))
    world = World(pod(*both, init=("first",), ended=("first",), running=("main",), at="2026-11-22T03:00:00Z"))
    world.since_s = datetime.fromisoformat("2026-11-22T02:59:59Z").timestamp()
    assert not world.retains("first")
    world.since_s = datetime.fromisoformat("2026-11-22T03:00:30Z").timestamp()
    assert world.retains("first")
