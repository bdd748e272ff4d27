"""Time slices of the driver: read and set by the driver's own tool, with a time limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.stand_ins import stand_in_smi

from calabash.adapters.gpu import sim
from calabash.adapters.gpu.library import simulated_environment
from calabash.adapters.gpu.nvidia import timeslice_intervals
from calabash.adapters.gpu.nvidia.timeslice_intervals import Intervals
from calabash.adapters.host import children
from calabash.adapters.host.children import PROGRAM_PATH
from calabash.model.device import DeviceUuid, Interval
from calabash.model.errors import CalabashError, Reason

CARD = DeviceUuid("GPU-1")


def tool(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Make the first ``nvidia-smi`` of the search path run a script."""
    monkeypatch.setenv(PROGRAM_PATH, str(directory))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return stand_in_smi(directory, script)


def test_a_class_is_set_as_the_tool_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tool(tmp_path, monkeypatch, "exit 0")
    Intervals({}).set(CARD, Interval.LONG)
    Intervals({}).set(CARD, Interval.DEFAULT)
    assert asked.read_text() == (
        "compute-policy -i GPU-1 --set-timeslice 3\ncompute-policy -i GPU-1 --set-timeslice 0\n"
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("GPU 0: Timeslice: Default", Interval.DEFAULT),
        ("| 0 | Timeslice | SHORT |", Interval.SHORT),
        ("Timeslice:  long", Interval.LONG),
        ("", None),
        ("Timeslice: 7", None),
        ("Default and Long", None),
    ],
)
def test_what_the_tool_says_of_a_class_is_read_with_indulgence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, expected: Interval | None
) -> None:
    tool(tmp_path, monkeypatch, f"echo '{said}'")
    assert Intervals({}).interval(CARD) is expected


@pytest.mark.parametrize(
    ("script", "reason", "said"),
    [
        ("echo 'Insufficient Permissions' >&2; exit 4", Reason.NOT_PERMITTED, "Insufficient"),
        ("echo 'Not Supported'; exit 3", Reason.UNSUPPORTED, "Not Supported"),
        ("echo 'Setting the timeslice is not supported'; exit 0", Reason.UNSUPPORTED, "not supported"),
        ("echo 'No devices were found'; exit 6", Reason.NOT_FOUND, "No devices"),
        ("exit 255", Reason.UNSUPPORTED, "255"),
    ],
)
def test_a_refusal_says_what_the_tool_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: Reason, said: str
) -> None:
    tool(tmp_path, monkeypatch, script)
    with pytest.raises(CalabashError, match=said) as refused:
        Intervals({}).set(CARD, Interval.SHORT)
    assert refused.value.reason is reason


def test_without_the_tool_and_with_one_that_hangs_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        without.setattr(children, "SYSTEM_DIRECTORIES", ())
        with pytest.raises(CalabashError) as refused:
            Intervals({}).interval(CARD)
    assert refused.value.reason is Reason.UNSUPPORTED
    tool(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(timeslice_intervals, "ASK_S", 0.2)
    with pytest.raises(CalabashError) as refused:
        Intervals({}).interval(CARD)
    assert refused.value.reason is Reason.TIMEOUT


def test_a_simulated_card_keeps_its_class_for_itself(tmp_path: Path) -> None:
    node = sim.create_node(tmp_path, "lab", "2xT4", seed=1)
    one, two = (device.uuid for device in sim.show_node(node).devices)
    asked = Intervals(simulated_environment(node.state))
    assert asked.interval(one) is Interval.DEFAULT
    if os.geteuid() != 0:
        with pytest.raises(CalabashError) as refused:
            asked.set(one, Interval.SHORT)
        assert refused.value.reason is Reason.NOT_PERMITTED
        return
    asked.set(one, Interval.SHORT)
    assert (asked.interval(one), asked.interval(two)) == (Interval.SHORT, Interval.DEFAULT)
    assert [d.timeslice for d in sim.show_node(node).devices] == [1, 0]
    with pytest.raises(CalabashError) as refused:
        asked.interval(DeviceUuid("GPU-none"))
    assert refused.value.reason is Reason.NOT_FOUND
