"""What ``calabash planner`` refuses before it begins."""

from __future__ import annotations

import pytest

from calabash.cli.planner import planner
from calabash.model.errors import CalabashError


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "[::]:7070", "10.1.2.3:7070", "planner.example:7070"])
def test_it_does_not_answer_whoever_reaches_its_pod(address: str) -> None:
    with pytest.raises(CalabashError, match="not an address of the loopback") as refused:
        planner.main(["--listen", address, "--kubeconfig", "/nonexistent"], standalone_mode=False)
    assert "let kube-scheduler run beside it" in refused.value.hint


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "[::1]:7070", "localhost:7070", "127.9.9.9:0"])
def test_every_address_of_the_loopback_will_do(address: str) -> None:
    with pytest.raises(CalabashError, match="/nonexistent"):  # the next thing that it looks for
        planner.main(["--listen", address, "--kubeconfig", "/nonexistent"], standalone_mode=False)
