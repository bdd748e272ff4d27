"""Targets of MPS services: devices and MIG instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.mps_world import CARD, record, tools

from calabash.model.errors import CalabashError, Reason
from calabash.model.request import Slice
from calabash.node.modes.mps.target import Served, place_of, served_at


@pytest.mark.parametrize(
    ("of_card", "asked", "given"), [(100, 30, 30), (43, 43, 100), (43, 14, 32), (15, 1, 6), (58, 58, 100)]
)
def test_share_of_the_card_is_converted_to_a_share_of_the_instance(of_card: int, asked: int, given: int) -> None:
    served = Served(
        place=(CARD, "3g.40gb", 4), uuid=CARD, name="", part="", directory="", multiprocessors=0,
        percent_of_card=of_card,
    )  # fmt: skip
    assert served.share_of(Slice(device=CARD, memory_mib=1, core_percent=asked)) == given
    assert not served.whole


def test_target_of_a_whole_card_has_its_uuid(tmp_path: Path) -> None:
    served = served_at(place_of(record()), tools(tmp_path))
    assert (served.uuid, served.name, served.part, served.directory) == (CARD, "device 3", "mps", "3")
    assert (served.multiprocessors, served.whole) == (108, True)


@pytest.mark.parametrize(
    ("place", "reason"),
    [(("GPU-9", "", -1), Reason.NO_DEVICES), ((CARD, "3g.40gb", 4), Reason.UNHEALTHY)],
    ids=["no card", "no instance"],
)
def test_missing_card_or_instance_has_no_target(tmp_path: Path, place: Any, reason: Reason) -> None:
    with pytest.raises(CalabashError) as told:
        served_at(place, tools(tmp_path))
    assert told.value.reason is reason
