"""The topology that an owner requests, for one of its pods, and the domains of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.gang_member import GangMember, MemberTopology, read_member, write_member
from calabash.kubernetes.gangs.gang import Gang, Role, TopologyRequest
from calabash.kubernetes.gangs.near import domains_of, topology_for

LEVELS = ("zone", "block", "rack")
HEAD, WORKER = Role(name="head", count=1, minimum=1), Role(name="worker", count=4, minimum=4)


def gang(*requests: TopologyRequest) -> Gang:
    return Gang(api_version="v1", kind="K", namespace="", name="n", roles=(HEAD, WORKER), minimum=5, topology=requests)


def test_request_for_all_members_gives_all_of_them_one_group_and_successive_ranks() -> None:
    asked = gang(TopologyRequest(level="block", required=True), TopologyRequest(level="rack", required=False))
    wanted = MemberTopology(required="block", preferred="rack", rank=0)
    assert topology_for(asked, HEAD, "0", LEVELS) == (wanted, ())
    assert [topology_for(asked, WORKER, str(n), LEVELS)[0] for n in range(2)] == [
        MemberTopology(required="block", preferred="rack", rank=1),
        MemberTopology(required="block", preferred="rack", rank=2),
    ]


def test_request_of_a_role_is_a_group_of_its_own_and_the_other_role_has_none() -> None:
    asked = gang(TopologyRequest(level="rack", required=True, role="worker"))
    assert topology_for(asked, WORKER, "3", LEVELS)[0] == MemberTopology(required="rack", group="worker", rank=3)
    assert topology_for(asked, HEAD, "0", LEVELS) == (None, ())


def test_request_for_all_members_counts_before_that_of_a_role() -> None:
    asked = gang(
        TopologyRequest(level="rack", required=True, role="worker"), TopologyRequest(level="block", required=True)
    )
    assert topology_for(asked, WORKER, "", LEVELS)[0] == MemberTopology(required="block")


def test_slices_and_the_name_of_the_node_as_a_level() -> None:
    asked = gang(
        TopologyRequest(level="kubernetes.io/hostname", required=True, role="worker", size=2),
        TopologyRequest(level="zone", required=True, role="worker"),
    )
    assert topology_for(asked, WORKER, "1", LEVELS)[0] == MemberTopology(
        required="zone", slice_level="kubernetes.io/hostname", slice_size=2, group="worker", rank=1
    )


def test_unknown_levels_are_named_and_have_no_effect() -> None:
    asked = gang(TopologyRequest(level="row", required=True), TopologyRequest(level="rack", required=False))
    assert topology_for(asked, WORKER, "0", LEVELS) == (MemberTopology(preferred="rack", rank=1), ("row",))
    assert topology_for(asked, WORKER, "0", ()) == (None, ("row", "rack"))


@pytest.mark.parametrize("index", ["", "x", "-1", "1" * 20, "²"])
def test_pod_without_a_number_has_no_rank(index: str) -> None:
    asked = gang(TopologyRequest(level="rack", required=True))
    found, _ = topology_for(asked, WORKER, index, LEVELS)
    assert found == MemberTopology(required="rack")


def test_annotation_keeps_the_topology() -> None:
    member = GangMember(gang="K/n@1", size=5, topology=MemberTopology(required="rack", group="worker", rank=3))
    assert read_member(write_member(member)) == member


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"zone": "z", "block": "b", "rack": "r"}, ("z", "b", "r")),
        ({"zone": "z", "block": "b"}, ("z", "b")),
        ({"zone": "z", "rack": "r"}, ("z", "/r", "r")),
        ({"rack": "r"}, ("/r", "/r", "r")),
        ({"block": "b"}, ("/b", "b")),
        ({}, ()),
    ],
)
def test_domains_of_a_node(labels: dict[str, str], wanted: tuple[str, ...]) -> None:
    assert domains_of(labels, LEVELS) == wanted


_NAME = st.sampled_from(["", "a", "b"])


@given(nodes=st.lists(st.fixed_dictionaries(dict.fromkeys(LEVELS, _NAME)), min_size=2, max_size=2))
def test_nodes_share_a_domain_only_if_a_label_of_the_level_or_of_an_inner_one_says_so(
    nodes: list[dict[str, str]],
) -> None:
    one, other = (domains_of(labels, LEVELS) for labels in nodes)
    for number in range(min(len(one), len(other))):
        if one[: number + 1] == other[: number + 1]:
            inner = LEVELS[number:]
            first = [next(level for level in inner if labels[level]) for labels in nodes]
            assert first[0] == first[1]
            assert nodes[0][first[0]] == nodes[1][first[0]]
