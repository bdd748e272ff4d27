"""Test of the limits of claims with a simulated kubelet, which kills the agent and repeats calls."""

from __future__ import annotations

from bench._driven_claims import claims_node
from bench._starts_left import Left, wait_until_nothing_is_left
from tests.kube.cluster import Cluster

STARTS = 200


def test_every_start_has_what_was_allocated_to_its_claim_and_nothing_stays_behind(control_plane: Cluster) -> None:
    """Short form of ``python -m bench.kube_claims``: no start may be wrong or lost, and nothing may be leaked."""
    with claims_node(control_plane, workers=6, seed=3) as node:
        node.run(STARTS, node.faults(1))
        left, _ = wait_until_nothing_is_left(node.left)
    assert node.tally.starts >= STARTS
    assert node.shared > 0
    assert node.tally.wrong == []
    assert node.tally.lost() == []
    assert left == Left(specs=0, slots=0, used_bytes=0, slices=0)
