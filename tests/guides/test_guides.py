"""Every guide that changes the product is followed to the letter, in a copy of the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.guides.guide import ROOT, Copy, WrittenFile, steps_of

GUIDES = sorted((ROOT / "docs" / "how-to").glob("add-*.md"))


def test_there_is_a_guide_for_each_way_to_extend_the_product() -> None:
    names = {guide.stem.removeprefix("add-a-").removeprefix("add-an-") for guide in GUIDES}
    assert names == {
        "sharing-mode",
        "placement-policy",
        "nvml-function",
        "vendor",
        "front-end",
        "hooked-function",
        "dialect",
    }


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide_prints_what_it_shows_when_followed(guide: Path, tmp_path: Path) -> None:
    steps = steps_of(guide.read_text())
    assert any(isinstance(step, WrittenFile) for step in steps)
    assert not isinstance(steps[-1], WrittenFile), "a guide ends with seeing that it works"
    copy = Copy(tmp_path / "calabash")
    for step in steps:
        if isinstance(step, WrittenFile):
            copy.write(step)
        else:
            copy.run(step)
