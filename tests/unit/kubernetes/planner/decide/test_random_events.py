"""The core under arbitrary sequences of events, also of such that no well-behaved cluster sends: no unlisted transition."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.kubernetes.planner.claimed import CLAIMS, ClaimCluster, by_claims, named, share
from tests.unit.kubernetes.planner.virtual import asked, gpu_node

from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.facts import EvictPod, PodClaimFacts, PodFacts, QueueFacts, SliceFacts
from calabash.kubernetes.planner.state.pod_lifecycle import POD_LIFECYCLE, PodEvent, Stage
from calabash.model.request import GpuRequest
from calabash.model.state_machine import StateMachine

UIDS = [f"p{number}" for number in range(6)]
NODES = ["a", "b", "c"]
LOW, PROD = QueueFacts(name="low"), QueueFacts(name="prod", deserved=2.0)
GANG = GpuRequest(gang="g", gang_size=2)


class HostileWorld(ClaimCluster):
    """A cluster whose pods, users, schedulers and API server do anything that the API permits."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__({"a": 1, "b": 2, "c": 2}, [LOW, PROD], seed=seed, allocation_apis={"c": "claims"})

    def step(self, name: str, uid: str, pick: int) -> None:
        STEPS[name](self, uid, pick)
        self.check_entries()

    def check_entries(self) -> None:
        """Check that the scheduler and the plan of each pod agree with its stage."""
        scheduler = self.core.store.scheduler
        for entry in self.core.store.entries.values():
            known, holds = entry.id in scheduler.known, scheduler.holds(entry.id)
            match entry.stage:
                case Stage.WAITING:
                    assert known
                    assert not holds
                    assert entry.plan is None
                case Stage.ASIDE | Stage.RIDING:
                    assert entry.facts.node or not (known or holds or entry.plan)
                case Stage.PLACED | Stage.RELEASING | Stage.RELEASED:
                    assert entry.plan is not None
                    assert holds or is_allocated(entry.plan)

    # ---- objects ------------------------------------------------------------------------------------------------------

    def make(self, uid: str, pick: int) -> None:
        if uid in self.pods:
            return
        whole, both = GpuRequest(), GpuRequest(count=2)
        requests: list[Any] = [whole, both, share(), asked(GANG), asked(whole, queue="prod"), asked(both, queue="low")]
        chosen = pick % 9
        more: dict[str, Any] = {"owner": "team/o" if pick % 2 else "", "movable": pick % 4 == 1}
        if chosen < 6:
            self.create(requests[chosen], name=uid, priority=pick % 3, **more)
        elif chosen == 6:
            self.claimer("c0", name=uid, **more)
        elif chosen == 7:
            self.claimer("c1", name=uid, terms=GANG, **more)
        else:
            own = (PodClaimFacts(name="gpu", template="t"),)
            self.create(by_claims(["gpu"]), name=uid, constraints=CLAIMS, claims=own, **more)

    def change(self, uid: str, pick: int) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        changes: list[dict[str, Any]] = [
            {"gated": False},
            {"gated": True},
            {"held_by_other_gate": not pod.held_by_other_gate},
            {"leaving": True},
            {"refused": True, "nominated": ""},
            {"refused": False, "nominated": "a"},
            {"priority": 9},
            {"request": None, "fault": "unreadable"},
            {"request": asked(GpuRequest(count=9))},
            {"request": asked(GpuRequest())},
            {"uses_our_scheduler": False, "candidate_nodes": ("a", "b"), "gated": False},
            {"uses_our_scheduler": False, "candidate_nodes": ("b",)},
            {"claims": named(["c0"])},
            {"claims": ()},
            {"is_recreated": not pod.is_recreated},
        ]
        self.set(replace(pod, **changes[pick % len(changes)]))

    def show_bound(self, uid: str, pick: int) -> None:
        pod = self.pods.get(uid)
        if pod is not None and not pod.node and not pod.leaving:
            entry = self.core.store.entries.get(uid)
            planned = entry.plan if entry is not None and pick % 2 else None
            node = planned.node if planned is not None else NODES[pick % 3]
            self.set(replace(pod, node=node, gated=False, plan=planned or pod.plan, bound_at_s=self.now_s))

    def finish(self, uid: str, pick: int) -> None:
        if uid in self.pods and pick % 2:
            self.core.pod_changed(replace(self.pods.pop(uid), finished=True, refusal="full" * (pick % 3)), self.now_s)
        else:
            self.end(uid)

    def change_claim(self, uid: str, pick: int) -> None:
        name = f"c{pick % 2}"
        claim = self.claims.get(name)
        if claim is None:
            self.claim(name, share() if pick % 3 else GpuRequest())
        elif pick % 4 == 3:
            del self.claims[name]
            self.reserved.pop(name, None)
            self.core.claim_deleted("team", name, self.now_s)
        elif "c" in self.nodes and not claim.node:
            held = self.could_allocate(claim, "c")
            self.update_claim(replace(claim, node="c", held=held))
        else:
            self.update_claim(replace(claim, node="", held=None))

    def own_claim(self, uid: str, pick: int) -> None:
        name = f"{uid}-gpu"
        if name not in self.claims:
            self.claim(name, owner=uid, pod_claim="gpu")
        elif "c" in self.nodes:
            self.allocate_by_hand(name, "c")

    def change_node(self, uid: str, pick: int) -> None:
        name = NODES[pick % 3]
        if name not in self.nodes:
            self.add_node(name, 1 if name == "a" else 2)
            if name == "c":
                self.change_allocation_api("c", "claims")
        elif pick % 5 == 0:
            self.lose_node(name)
        else:
            node, gpus = self.nodes[name]
            if pick % 5 == 1:
                self.core.node_changed(replace(node, offers_device_ids=pick % 2 == 0), self.now_s)
            elif pick % 5 == 2:
                self.core.devices_changed(gpu_node(name, len(gpus.devices), unhealthy=[0]), self.now_s)
            elif pick % 5 == 3:
                taken = (SliceFacts(pod_uid="unknown", device="GPU-0", memory_mib=0, whole=True),)
                self.core.devices_changed(replace(gpus, slices=taken), self.now_s)
            else:
                self.core.node_changed(node, self.now_s)
                self.core.devices_changed(gpus, self.now_s)

    def change_queues(self, uid: str, pick: int) -> None:
        self.queues = [LOW, PROD] if pick % 2 else [PROD]
        self.core.set_queues(self.queues)

    # ---- the planner --------------------------------------------------------------------------------------------------

    def let_time_pass(self, uid: str, pick: int) -> None:
        self.now_s += (0.1, 2.0, 12.0, 70.0, 700.0)[pick % 5]
        self.core.answers.take_expired(self.now_s)
        self.decide()

    def write(self, uid: str, pick: int) -> None:
        """Carry out the oldest action, or let it fail, or let the API server refuse it."""
        while self.todo:
            action = self.todo.pop(0)
            if pick % 4 == 0:
                self.core.decisions.write_refused(action, "too large", self.now_s)
            elif pick % 4 == 1 and isinstance(action, EvictPod):
                self.core.decisions.eviction_refused(action.pod.uid, "budget", self.now_s)
            else:
                self.carry_out(action, fail=pick % 8 == 1)
            if pick % 3:
                return

    def take_over_as_another(self, uid: str, pick: int) -> None:
        if pick % 4 == 0:
            self.take_over()

    # ---- kube-scheduler and its calls ---------------------------------------------------------------------------------

    def ask(self, uid: str, pick: int) -> None:
        nominated = NODES[pick % 3]
        self.core.answers.filter(uid, NODES[: pick % 4], nominated if pick % 2 else "", self.now_s)

    def ask_to_bind(self, uid: str, pick: int) -> None:
        entry = self.core.store.entries.get(uid)
        planned = entry.plan.node if entry is not None and entry.plan is not None and pick % 4 else NODES[pick % 3]
        self.core.answers.bind(uid, planned, self.now_s)
        for released in self.core.answers.release_ready_holds():
            self.core.answers.bind(released, planned, self.now_s)

    def write_binding(self, uid: str, pick: int) -> None:
        entry = self.core.store.entries.get(uid)
        plan_id = entry.plan.id if entry is not None and entry.plan is not None else "unknown"
        if pick % 3 == 0:
            self.core.decisions.binding_refused(uid, plan_id, "no", self.now_s)
        self.core.answers.binding_written(uid, plan_id, ok=pick % 3 > 0)

    def try_pods(self, uid: str, pick: int) -> None:
        self.full = set(NODES[: pick % 2])
        for pod in [p for p in self.pods.values() if self._is_open(p)]:
            if self._is_open(self.pods.get(pod.uid)):
                self.try_one(pod.uid)

    def _is_open(self, pod: PodFacts | None) -> bool:
        return pod is not None and not (pod.gated or pod.node or pod.leaving)


Step = Callable[[HostileWorld, str, int], None]
STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        HostileWorld.make,
        HostileWorld.change,
        HostileWorld.show_bound,
        HostileWorld.finish,
        HostileWorld.change_claim,
        HostileWorld.own_claim,
        HostileWorld.change_node,
        HostileWorld.change_queues,
        HostileWorld.let_time_pass,
        HostileWorld.write,
        HostileWorld.take_over_as_another,
        HostileWorld.ask,
        HostileWorld.ask_to_bind,
        HostileWorld.write_binding,
        HostileWorld.try_pods,
    )
}
HISTORIES = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from(UIDS), st.integers(0, 59)), min_size=20, max_size=100
)


@given(history=HISTORIES)
@settings(max_examples=examples(200), deadline=None)
def test_no_history_meets_an_unlisted_transition(history: list[tuple[str, str, int]]) -> None:
    world = HostileWorld()
    for step in history:
        world.step(*step)


RARE = {  # reached by test_displaced_plans and test_rare_transitions
    (Stage.PLACED, PodEvent.UNPLANNABLE),
    (Stage.RELEASING, PodEvent.UNPLANNABLE),
    (Stage.PLACED, PodEvent.TERMINATING),
    (Stage.RIDING, PodEvent.TERMINATING),
    (Stage.PLACED, PodEvent.CLAIMS_ALLOCATED),
    (Stage.PLACED, PodEvent.CLAIMS_ALLOCATED_GATED),
    (Stage.RELEASED, PodEvent.CLAIMS_ALLOCATED_GATED),
    (Stage.RIDING, PodEvent.SUBMITTED),
    (Stage.RIDING, PodEvent.CONFINED),
    (Stage.PLACED, PodEvent.CONFINED),
    (Stage.WAITING, PodEvent.SHARES_CLAIMS),
    (Stage.PLACED, PodEvent.SHARES_CLAIMS),
    (Stage.RELEASING, PodEvent.SHARES_CLAIMS),
    (Stage.RELEASED, PodEvent.SHARES_CLAIMS),
    (Stage.PLACED, PodEvent.ASSIGNED),
    (Stage.PLACED, PodEvent.ASSIGNED_BUSY),
    (Stage.RELEASING, PodEvent.ASSIGNED_BUSY),
    (Stage.RELEASED, PodEvent.ASSIGNED_BUSY),
    (Stage.PLACED, PodEvent.EVICTION_REQUESTED),
    (Stage.RIDING, PodEvent.EVICTION_REQUESTED),
    (Stage.BINDING, PodEvent.EVICTION_REQUESTED),
}
WEIGHTS = {"write": 6, "change_claim": 4, "let_time_pass": 4, "make": 3, "change": 3, "ask": 3, "ask_to_bind": 3}


def test_random_histories_reach_every_listed_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[tuple[Any, Any]] = set()
    advance = StateMachine.advance

    def recorded(self: StateMachine[Any, Any], subject: Any, event: Any, *, name: str) -> None:
        before = subject.stage
        advance(self, subject, event, name=name)
        reached.add((before, event))

    monkeypatch.setattr(StateMachine, "advance", recorded)
    names = sorted(STEPS)
    weights = [WEIGHTS.get(name, 1) for name in names]
    for seed in range(250):
        random.seed(seed)  # ``affinity.alternatives`` draws from the module's generator
        chosen, world = random.Random(seed), HostileWorld(seed=seed)
        for _ in range(120):
            world.step(chosen.choices(names, weights)[0], chosen.choice(UIDS), chosen.randrange(60))
    assert set(POD_LIFECYCLE.table) - reached <= RARE
