"""Table of the life cycle of pods."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.planner.state.pod_lifecycle import POD_LIFECYCLE, SETTLED, UNBOUND, PodEvent, Stage


@dataclass
class Pod:
    stage: Stage = POD_LIFECYCLE.initial


@given(data=st.data())
def test_pod_leaves_settled_stages_only_by_answers_evictions_and_faults(data: st.DataObject) -> None:
    pod = Pod()
    for _ in range(30):
        before = pod.stage
        listed = [event for stage, event in POD_LIFECYCLE.table if stage is before]
        event = data.draw(st.sampled_from(listed))
        POD_LIFECYCLE.advance(pod, event, name="pod")
        if before in SETTLED and pod.stage not in SETTLED:
            assert event in {PodEvent.BINDING_REFUSED, PodEvent.WRITE_REFUSED, PodEvent.UNPLANNABLE}
        if before is Stage.EVICTED:
            assert event is PodEvent.EVICTION_REFUSED


def test_pod_is_bound_by_kube_scheduler_only_with_a_plan() -> None:
    sources = {stage for stage, event in POD_LIFECYCLE.table if event is PodEvent.BINDING_APPROVED}
    assert sources <= UNBOUND - {Stage.PLACED} | {Stage.BINDING, Stage.BOUND}
