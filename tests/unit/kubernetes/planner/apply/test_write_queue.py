"""Order of writes: namespaces take turns, one write of a pod at a time, and pauses concern one pod."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.apply.write_queue import AttemptedWrite, WriteQueue
from calabash.kubernetes.planner.state.facts import Action, Nominate, SweepPod, UngatePod


def pod(namespace: str, name: str) -> PodName:
    return PodName(uid=f"{namespace}/{name}", namespace=namespace, name=name)


def nominate(namespace: str, name: str, node: str = "a") -> Nominate:
    return Nominate(pod=pod(namespace, name), node=node)


def taken(backlog: WriteQueue[Action], now_s: float = 0.0) -> list[AttemptedWrite[Action]]:
    found = []
    while (write := backlog.take(now_s)) is not None:
        found.append(write)
    return found


def test_namespaces_take_turns_however_many_writes_each_has() -> None:
    backlog = WriteQueue[Action](100)
    for i in range(50):
        backlog.put(nominate("many", f"p{i}"))
    backlog.put(nominate("few", "p"))
    backlog.put(nominate("other", "p"))
    order = [write.action.pod.namespace for write in taken(backlog)]
    assert set(order[:3]) == {"many", "few", "other"}
    assert len(order) == 52


def test_a_namespace_has_no_more_than_its_share_of_writes_in_progress() -> None:
    backlog = WriteQueue[Action](2)
    for i in range(5):
        backlog.put(nominate("slow", f"p{i}"))
    first = taken(backlog)
    assert len(first) == 2
    backlog.put(nominate("quick", "p"))
    (other,) = taken(backlog)
    assert other.action.pod.namespace == "quick"
    backlog.done(first[0])
    assert len(taken(backlog)) == 1


def test_the_writes_of_a_pod_are_made_in_order_one_at_a_time_and_the_last_of_each_kind() -> None:
    backlog = WriteQueue[Action](10)
    for node in ("a", "b", "c"):
        backlog.put(nominate("team", "p", node))
    backlog.put(UngatePod(pod=pod("team", "p")))
    (first,) = taken(backlog)
    assert first.action == nominate("team", "p", "c")
    backlog.put(nominate("team", "p", "d"))
    assert taken(backlog) == []
    backlog.done(first)
    (second,) = taken(backlog)
    backlog.done(second)
    assert second.action == UngatePod(pod=pod("team", "p"))
    (third,) = taken(backlog)
    assert third.action == nominate("team", "p", "d")


def test_a_write_that_failed_waits_alone_and_is_replaced_by_a_later_one() -> None:
    backlog = WriteQueue[Action](10)
    backlog.put(nominate("team", "p"))
    backlog.put(nominate("team", "q"))
    first, second = taken(backlog)
    backlog.retry(first, 10.0)
    backlog.done(second)
    assert backlog.next_s(0.0) == 10.0
    backlog.put(nominate("team", "p", "b"))
    assert taken(backlog, 9.9) == []
    (again,) = taken(backlog, 10.0)
    assert again.action == nominate("team", "p", "b")
    backlog.put(nominate("team", "p", "c"))
    backlog.retry(again, 20.0)
    (last,) = taken(backlog, 20.0)
    assert last.action == nominate("team", "p", "c")
    backlog.done(last)
    assert len(backlog) == 0
    assert backlog.next_s(20.0) == math.inf


def test_no_write_begins_during_a_pause() -> None:
    backlog = WriteQueue[Action](10)
    backlog.put(nominate("team", "p"))
    backlog.pause(5.0)
    assert taken(backlog, 4.9) == []
    assert backlog.next_s(4.9) == 5.0
    assert len(taken(backlog, 5.0)) == 1


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("take"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["done", "again"]), st.integers(0, 9), st.just(0), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_every_pods_last_write_of_each_kind_is_made_in_the_end(steps: list[tuple[str, int, int, int]]) -> None:
    backlog, now_s = WriteQueue[Action](2), 0.0
    wanted: set[tuple[str, type]] = set()
    made: set[tuple[str, type]] = set()
    open_: list[AttemptedWrite[Action]] = []

    def step(what: str, first: int, second: int, third: int) -> None:
        if what == "put":
            one = pod(f"n{first}", f"p{second}")
            action: Action = (
                Nominate(pod=one, node="a"),
                UngatePod(pod=one),
                SweepPod(pod=one, is_recreated=False, message=""),
            )[third]
            backlog.put(action)
            wanted.add((action.pod.uid, type(action)))
            made.discard((action.pod.uid, type(action)))
        elif what == "take":
            write = backlog.take(now_s)
            if write is not None:
                assert write.action.pod.uid not in {one.action.pod.uid for one in open_}
                open_.append(write)
        elif open_:
            write = open_.pop(first % len(open_))
            if what == "done":
                backlog.done(write)
                made.add((write.action.pod.uid, type(write.action)))
            else:
                backlog.retry(write, now_s + third)

    for words in steps:
        now_s += 1.0
        step(*words)
    for _ in range(500):
        now_s += 10.0
        step("take", 0, 0, 0)
        step("done", 0, 0, 0)
    assert made == wanted
    assert len(backlog) == 0
