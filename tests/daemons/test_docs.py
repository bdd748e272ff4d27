"""The commands of the pages that a new user follows, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What sets up the tree itself is what runs this test; a trace that has to be downloaded is not here, nor is a cluster.
_ELSEWHERE = re.compile(r"^(git clone|make |nvidia-ctk |kubectl |calabash simulate openb|    --policy pgb,fgd --seeds)")
# Pages, and the commands on them that are there to be refused, with their exit codes.
PAGES: dict[str, dict[str, int]] = {
    "README.md": {},
    "docs/tutorial/first-slice.md": {"calabash run --memory 200GiB -- true": 5},
    "docs/tutorial/three-teams.md": {},
    "docs/tutorial/a-network-of-ones-own.md": {
        "calabash net diff -f examples/networks/web.yaml": 1,
        "calabash subnet create red/b --cidr 10.0.1.128/25": 1,
        "calabash vpc delete red": 1,
    },
    "docs/how-to/test-your-platform-without-gpus.md": {},
    "docs/how-to/back-up-the-pool.md": {},
    "docs/how-to/failed-cards.md": {},
    "docs/how-to/mig-layouts.md": {},
    "docs/how-to/mps.md": {},
    "docs/how-to/passthrough.md": {},
    "docs/how-to/send-invoices.md": {"calabash invoice issue $(date +%Y-%m) --tenant $(id -un)": 1},
    "docs/how-to/spill.md": {},
    "docs/how-to/time-slices.md": {},
    "docs/how-to/tenants.md": {},
    "docs/how-to/tenant-networks.md": {"calabash net diff -f examples/networks/web.yaml": 1},
}


def script(page: str) -> str:
    """All blocks of commands of a page, in their order."""
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if not _ELSEWHERE.match(line)]
    # The home is given by the test, not by the page.
    return re.sub(r" ?CALABASH_HOME=\S+", "", "\n".join(lines))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CALABASH_", "LD_"))}
    environment |= {
        "CALABASH_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    failed = tmp_path / "failed"
    trap = f"""trap 'echo "$? $BASH_COMMAND" >>{failed}' ERR\n"""
    output = tmp_path / "output"
    try:
        with output.open("wb") as sink:
            subprocess.run(
                ["bash", "-uEc", f"{trap}{script(page)}"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=240,
                check=False,
            )
    finally:
        down = [sys.executable, "-m", "calabash.cli.main", "down", "--force"]
        subprocess.run(down, env=environment, capture_output=True, timeout=60, check=False)
    said = output.read_text(errors="replace")
    wrong = failed.read_text().splitlines() if failed.exists() else []
    assert wrong == [f"{code} {command}" for command, code in PAGES[page].items()], said
    assert "Traceback" not in said
    assert "not found" not in said


def test_a_page_that_is_followed_is_not_empty() -> None:
    assert all(script(page).count("calabash ") >= 2 for page in PAGES)
