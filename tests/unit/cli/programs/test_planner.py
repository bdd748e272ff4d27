"""Options that ``calabash serve planner`` refuses."""

from __future__ import annotations

import click
import pytest

from calabash.cli.programs.planner import planner
from calabash.model.errors import CalabashError


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "[::]:7070", "10.1.2.3:7070", "planner.example:7070"])
def test_extender_address_outside_the_loopback_is_refused(address: str) -> None:
    with pytest.raises(CalabashError, match="is not a loopback address") as refused:
        planner.main(["--listen", address, "--kubeconfig", "/nonexistent"], standalone_mode=False)
    assert "run kube-scheduler beside it" in refused.value.hint


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "[::1]:7070", "localhost:7070", "127.9.9.9:0"])
def test_every_loopback_address_is_accepted(address: str) -> None:
    with pytest.raises(CalabashError, match="/nonexistent"):  # the next thing that it looks for
        planner.main(["--listen", address, "--kubeconfig", "/nonexistent"], standalone_mode=False)


def test_planner_has_the_nodes_of_a_pool_or_of_no_pool() -> None:
    with pytest.raises(CalabashError, match=r"expected calabash.dev/pool=NAME"):
        planner.main(["--node-selector", "zone=a", "--kubeconfig", "/nonexistent"], standalone_mode=False)
    for selector in ("calabash.dev/pool=a", "!calabash.dev/pool"):
        with pytest.raises(CalabashError, match="/nonexistent"):  # the next thing that it looks for
            planner.main(["--node-selector", selector, "--kubeconfig", "/nonexistent"], standalone_mode=False)


def test_handshake_affinity_has_one_planner() -> None:
    words = ["--node-selector", "calabash.dev/pool=a", "--handshake", "affinity", "--kubeconfig", "/nonexistent"]
    with pytest.raises(CalabashError, match="one kube-scheduler serves all pods"):
        planner.main(words, standalone_mode=False)


@pytest.mark.parametrize("option", ["--nominate-from", "--nominate-claims-from"])
@pytest.mark.parametrize("nodes", ["-1", "1000001", "many"])
def test_nomination_begins_at_a_number_of_nodes(option: str, nodes: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        planner.main([option, nodes, "--kubeconfig", "/nonexistent"], standalone_mode=False)
    assert nodes in refused.value.message
