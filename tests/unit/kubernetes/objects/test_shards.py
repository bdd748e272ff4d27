"""Tests of shards: valid selectors, no node in two shards, and the shard of a queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.objects.names import POOL
from calabash.kubernetes.objects.shards import ALL, Shard, is_ours, pool_of_queue, scheduler_of
from calabash.model.errors import CalabashError
from calabash_testing.api_server.selectors import matches

POOLS = st.sampled_from(["", "a", "b", "a-b"])
SHARDS = st.one_of(st.just(ALL), POOLS.map(lambda pool: Shard(pool=pool)))


def has(shard: Shard, label: str) -> bool:
    """Return True if the API server would select a node with this label."""
    return matches({"metadata": {"labels": {POOL: label} if label else {}}}, shard.selector, "")


@given(SHARDS, SHARDS, POOLS)
def test_parts_that_do_not_overlap_share_no_node(one: Shard, other: Shard, label: str) -> None:
    if not one.overlaps(other):
        assert not (has(one, label) and has(other, label))
    assert one.overlaps(other) == other.overlaps(one)
    assert one.overlaps(one)


@given(SHARDS)
def test_a_part_is_known_again_by_its_selector(shard: Shard) -> None:
    assert Shard.from_selector(shard.selector) == shard
    assert is_ours(shard.scheduler)


@given(SHARDS)
def test_a_part_is_known_again_by_the_name_of_its_lease(shard: Shard) -> None:
    assert Shard.of_lease(shard.lease) == shard


@pytest.mark.parametrize(
    "name", ["calabash-scheduler", "calabash-planners", "calabash-planner-", "calabash-planner-A", "x"]
)
def test_leases_of_others_are_no_part_s(name: str) -> None:
    assert Shard.of_lease(name) is None


def test_each_part_has_a_lease_of_its_own_and_all_has_the_scheduler_of_the_rest() -> None:
    parts = [ALL, Shard(), Shard(pool="a"), Shard(pool="b")]
    assert [part.lease for part in parts] == [
        "calabash-planner",
        "calabash-planner.rest",
        "calabash-planner-a",
        "calabash-planner-b",
    ]
    assert [part.scheduler for part in parts] == ["calabash", "calabash", "calabash-a", "calabash-b"]


@pytest.mark.parametrize(
    "selector",
    [
        "pool=a",
        f"{POOL} in (a,b)",
        f"{POOL}=a,zone=b",
        f"{POOL}!=a",
        POOL,
        f"{POOL}=",
        f"{POOL}=A",
        f"{POOL}={'a' * 41}",
        "!zone",
    ],
)
def test_other_selectors_are_refused_for_nobody_could_say_what_they_share(selector: str) -> None:
    with pytest.raises(CalabashError, match=r"expected calabash.dev/pool=NAME"):
        Shard.from_selector(selector)


def test_a_queue_is_in_the_pool_of_the_first_queue_of_its_tree() -> None:
    tree = {
        "research": ("", "a"),
        "research.nlp": ("research", "b"),
        "research.nlp.deep": ("research.nlp", ""),
        "prod": ("", ""),
        "orphan": ("gone", "b"),
        "odd": ("", "Not a name"),
        "round": ("about", "a"),
        "about": ("round", "a"),
    }
    found = {name: pool_of_queue(name, tree) for name in tree}
    assert found == {
        "research": "a",
        "research.nlp": "a",
        "research.nlp.deep": "a",
        "prod": "",
        "orphan": "b",
        "odd": "",
        "round": "",
        "about": "",
    }
    assert pool_of_queue("nobody", tree) == ""
    assert scheduler_of("Not a name") == "calabash"
