"""Queue of pods that are retried in turn."""

from __future__ import annotations

from calabash.kubernetes.planner.state.retry_queue import RetryQueue


def test_rounds_begin_with_the_least_recently_tried_pod() -> None:
    queue = RetryQueue()
    for uid in "abc":
        queue.put(uid)
    assert queue.has_new
    assert list(queue.take_round(2)) == ["a", "b"]
    assert not queue.has_new
    assert list(queue.take_round(2)) == ["c", "a"]


def test_pods_that_are_removed_during_a_round_are_skipped() -> None:
    queue = RetryQueue()
    for uid in "abc":
        queue.put(uid)
    tried = []
    for uid in queue.take_round(3):
        tried.append(uid)
        queue.remove("b")
    assert tried == ["a", "c"]
    assert queue.uids() == {"a", "c"}
