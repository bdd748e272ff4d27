"""How cards are given out is set in ``pool.toml``."""

from __future__ import annotations

from pathlib import Path

from calabash.standalone.settings import SETTINGS_FILE, read_settings


def test_cards_take_one_process_only_where_the_file_says_so(tmp_path: Path) -> None:
    assert not read_settings(tmp_path).devices.one_process
    (tmp_path / SETTINGS_FILE).write_text("[devices]\none_process = true\n")
    assert read_settings(tmp_path).devices.one_process
