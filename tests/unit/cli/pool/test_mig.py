"""Tests of ``calabash device mig``: parsing of layouts, and the drawing of a card."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.cli.pool.mig import drawn, instances_of, layouts_of
from calabash.model.errors import CalabashError


def test_a_layout_names_a_card_and_its_instances() -> None:
    assert layouts_of("0:3g.40gb@4,1g.10gb*2") == [
        {
            "device": "0",
            "instances": [
                {"profile": "3g.40gb", "start": 4},
                {"profile": "1g.10gb", "start": -1},
                {"profile": "1g.10gb", "start": -1},
            ],
        }
    ]
    assert layouts_of("1:none") == [{"device": "1", "instances": []}]


def test_a_file_has_a_layout_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "layout"
    file.write_text("# the training cards\n0: 7g.80gb\n\n1: 1g.10gb*7  # for students\n")
    assert [(c["device"], len(c["instances"])) for c in layouts_of(str(file))] == [("0", 1), ("1", 7)]


@pytest.mark.parametrize(
    "wrong", ["", "0:", "0:1g", "0:1g.10gb*0", "0:1g.10gb@1*2", "0:1g.10gb*99", ":1g.10gb", "0:x,y", "/nowhere", "/"]
)
def test_what_is_no_layout_is_refused(wrong: str) -> None:
    with pytest.raises(CalabashError):
        layouts_of(wrong)


def test_a_file_that_is_no_text_or_says_nothing_is_refused(tmp_path: Path) -> None:
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"\xff\xfe\x00")
    empty.write_text("# nothing\n")
    for file in (binary, empty):
        with pytest.raises(CalabashError):
            layouts_of(str(file))


def test_profiles_may_be_counted() -> None:
    assert instances_of("1g.10gb+me,2g.20gb*2") == [("1g.10gb+me", -1), ("2g.20gb", -1), ("2g.20gb", -1)]


def test_a_card_is_drawn_with_its_memory_slices_and_who_has_them() -> None:
    lines = drawn(
        {
            "index": 0, "model": "H100", "mode": "mig", "pinned": "mig", "slices": 8, "compute": 7, "compute_free": 3,
            "instances": [
                {"profile": "4g.40gb", "start": 0, "slices": 4, "memory_mib": 40448, "uuid": "MIG-1", "state": "used",
                 "allocations": ["a1"]},
                {"profile": "1g.10gb", "start": 6, "slices": 1, "memory_mib": 9984, "uuid": "", "state": "idle",
                 "allocations": []},
            ],
            "profiles": [{"name": "2g.20gb", "starts": [4]}, {"name": "7g.80gb", "starts": []}],
        }
    )  # fmt: skip
    assert lines[0] == "GPU 0 H100 (mig, pinned to mode mig), 3 of 7 compute slices free"
    assert lines[1] == "  [aaaa··b·]"
    assert "a1" in lines[2]
    assert "idle" in lines[3]
    assert lines[4] == "  room for 2g.20gb at 4"


def test_parts_of_an_instance_are_drawn_below_it_with_who_has_them() -> None:
    part = {"profile": "1c.3g.40gb", "compute": 1}
    parts = [
        {**part, "start": 1, "uuid": "MIG-b", "allocation": ""},
        {**part, "start": 2, "uuid": "MIG-a", "allocation": "a1"},
    ]
    lines = drawn(
        {
            "index": 0, "model": "H100", "mode": "mig", "pinned": "", "slices": 8, "compute": 7, "compute_free": 4,
            "instances": [
                {"profile": "3g.40gb", "start": 4, "slices": 4, "compute": 3, "memory_mib": 40448, "uuid": "",
                 "state": "used", "allocations": ["a1"], "parts": parts},
            ],
            "profiles": [],
        },
        wide=True,
    )  # fmt: skip
    assert lines[1] == "  [····aaaa]"
    assert "share its memory" in lines[2]
    assert lines[3].strip() == "[·12]"
    assert lines[4].split() == ["1", "1c.3g.40gb", "1", "idle", "MIG-b"]
    assert lines[5].split() == ["2", "1c.3g.40gb", "2", "a1", "MIG-a"]
