"""A slot whose pages have a version that this program does not support is refused before anything is changed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.unit.node.slots.test_pages import _spec

from calabash.model.errors import CalabashError, Reason
from calabash.node.slots.files import create_slot
from calabash.node.slots.names import LIMITS_FILE
from calabash.node.slots.page_version import require_supported_slot
from calabash.node.slots.pages import LimitsPage


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    create_slot(tmp_path / "a-1", _spec())
    return tmp_path / "a-1"


def _set_version(slot: Path, version: int) -> None:
    with open(slot / LIMITS_FILE, "r+b") as page:
        page.seek(8)  # behind the magic number
        page.write(struct.pack("<I", version))


def test_present_slot_is_supported(slot: Path) -> None:
    require_supported_slot(slot)


@pytest.mark.parametrize("version", [0, 3, 2**31])
def test_slot_of_another_version_is_refused_with_both_versions_also_if_the_page_has_another_size(
    slot: Path, version: int
) -> None:
    _set_version(slot, version)
    with pytest.raises(CalabashError) as opened:
        LimitsPage.of_slot(slot)
    with open(slot / LIMITS_FILE, "ab") as page:
        page.write(bytes(4096))
    with pytest.raises(CalabashError) as checked:
        require_supported_slot(slot)
    for caught in (opened, checked):
        assert caught.value.reason is Reason.VERSION_MISMATCH
        assert f"slot {slot} has page version {version}; calabash" in caught.value.message
        assert caught.value.message.endswith("supports page version 1 to 2")
        assert caught.value.hint.startswith("start the calabash that granted the allocation")


def test_slot_that_is_missing_or_damaged_is_left_to_the_reader_of_its_pages(slot: Path) -> None:
    require_supported_slot(slot.parent / "absent")
    (slot / LIMITS_FILE).write_bytes(b"\0" * 8192)
    require_supported_slot(slot)
    (slot / LIMITS_FILE).write_bytes(b"")
    require_supported_slot(slot)
