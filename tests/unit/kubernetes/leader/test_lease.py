"""Tests of leader election: never two leaders at a time, and a new leader soon after the old one has ended."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.adapters.kube.objects.core import LEASE, NAMESPACE
from calabash.kubernetes.leader.lease import Election
from calabash.kubernetes.leader.loop import LeadershipLoop
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube


class Candidates:
    """Several candidates on one API server, with one clock that the test moves."""

    def __init__(self, count: int = 2) -> None:
        self.client = MemoryKube()
        self.client.create(NAMESPACE, {"metadata": {"name": "system"}})
        self.now_s = 0.0
        self.all = [
            Election(
                self.client, namespace="system", name="planner", identity=f"p{i}", now_s=lambda: self.now_s, term_s=10.0
            )
            for i in range(count)
        ]


def test_second_candidate_takes_over_a_term_after_the_last_renewal() -> None:
    world = Candidates()
    first, second = world.all
    assert first.step()
    assert not second.step()
    world.now_s = 6.0
    assert first.step()
    world.now_s = 7.0
    assert not second.step(), "it sees the renewal here, and its term begins"
    world.now_s = 16.9
    assert not second.step()
    assert not first.leads(), "it gave up by its own clock before"
    world.now_s = 17.1
    assert second.step()
    assert not first.step()
    assert first.holder() == "p1"


def test_another_candidate_leads_at_once_after_a_resignation() -> None:
    world = Candidates()
    first, second = world.all
    assert first.step()
    assert not second.step()
    first.resign()
    assert not first.leads()
    assert second.step()


def test_candidate_without_an_api_server_stops_leading_before_its_term_ends() -> None:
    world = Candidates(1)
    (only,) = world.all
    assert only.step()
    world.client.faults.down = True
    world.now_s = 6.5
    assert only.step()
    world.now_s = 6.8
    assert not only.step()
    world.client.faults.down = False
    assert only.step()


def test_restarted_candidate_with_another_identity_waits_for_the_old_term() -> None:
    world = Candidates(3)
    assert world.all[0].step()
    again = world.all[2]
    assert not again.step()
    world.now_s = 10.1
    assert again.step()
    lease = world.client.get(LEASE, "planner", "system")
    assert lease is not None
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("p2", 1)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 8.0), st.booleans()), max_size=60))
@settings(max_examples=examples(100), deadline=None)
def test_at_most_one_candidate_leads_at_any_time(steps: list[tuple[int, float, bool]]) -> None:
    world = Candidates(3)
    for who, pause_s, down in steps:
        world.now_s += pause_s
        world.client.faults.down = down
        world.all[who].step()
        assert sum(one.leads() for one in world.all) <= 1


def test_lease_renewed_too_late_begins_another_term() -> None:
    world = Candidates(1)
    (only,) = world.all
    assert only.step()
    first = only.term()
    world.now_s = 6.0
    assert only.step()
    assert only.term() == first
    world.now_s = 13.0
    assert not only.leads(), "another may have led from here"
    assert only.step()
    assert only.term() == first + 1


def test_in_touch_is_the_result_of_the_last_step() -> None:
    world = Candidates()
    first, second = world.all
    assert first.step()
    assert not second.step()
    assert second.in_touch(), "it was answered that another leads"
    world.client.faults.down = True
    first.step()
    assert not first.in_touch()


class Stumbling:
    """Candidate whose first step fails with an unexpected exception."""

    def __init__(self) -> None:
        self.steps = 0

    def leads(self) -> bool:
        return self.steps > 1

    def step(self) -> bool:
        self.steps += 1
        if self.steps == 1:
            raise ZeroDivisionError
        return True

    def resign(self) -> None:
        raise CalabashError("away", reason=Reason.API_DOWN)

    def term(self) -> int:
        return 7

    def in_touch(self) -> bool:
        return self.steps > 1

    def holder(self) -> str:
        return "me"


def test_leadership_loop_continues_after_any_error_and_ends_the_term_when_stopped() -> None:
    answered = threading.Event()
    lead = LeadershipLoop(Stumbling(), every_s=0.01, stepped=lambda ok: answered.set() if ok else None)
    assert lead.term() == 0
    lead.start()
    assert answered.wait(60)
    assert (lead.term(), lead.holder()) == (7, "me")
    lead.stop()
    assert lead.term() == 0, "nothing is written by who has ended"
    lead.resign()


@pytest.mark.parametrize("stolen_by", ["p1"])
def test_a_conflict_at_renewal_ends_the_lead(stolen_by: str) -> None:
    world = Candidates()
    first = world.all[0]
    assert first.step()
    world.client.patch(LEASE, "planner", "system", body={"spec": {"holderIdentity": stolen_by, "renewTime": None}})
    assert not first.step()
