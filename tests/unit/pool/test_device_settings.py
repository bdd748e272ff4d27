"""Settings of devices in ``pool.toml``: exclusive compute mode, and refusals of invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.platform.home.directory import SETTINGS_FILE
from calabash.pool.settings import read_settings


def test_cards_take_one_process_only_where_the_file_says_so(tmp_path: Path) -> None:
    assert not read_settings(tmp_path).devices.one_process
    (tmp_path / SETTINGS_FILE).write_text("[devices]\none_process = true\n")
    assert read_settings(tmp_path).devices.one_process


@pytest.mark.parametrize("text", ["[cards]\none_process = true\n", "[devices]\none_process = 1\n", "[devices\n"])
def test_a_file_that_is_not_understood_names_every_section_there_is(tmp_path: Path, text: str) -> None:
    (tmp_path / SETTINGS_FILE).write_text(text)
    with pytest.raises(CalabashError) as refused:
        read_settings(tmp_path)
    assert refused.value.reason is Reason.BAD_FILE
    for section in ("[user]", "[journal]", "[devices]"):
        assert section in refused.value.hint
