"""The systemd unit of the pool is valid, and confines it at least as far as it did."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calabash.cli.service.unit import UNIT, unit_text

EXPOSURE_MAX = 8.6  # of 10, as systemd 252 computes it; most of it is what the pool needs, such as CAP_SYS_ADMIN
COMMAND = (sys.executable, "-I", "-m", "calabash.cli.main", "up", "--foreground")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: tools/bootstrap --tests")
    path = tmp_path / UNIT
    path.write_text(unit_text(COMMAND))
    return path


def analyzed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_finds_no_fault_in_the_unit(unit: Path) -> None:
    done = analyzed("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_unit_with_a_fault_is_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("RestartSec=2", "RestartSec=soon"))
    assert "Failed to parse sec value" in analyzed("verify", "--man=no", str(unit)).stderr


def test_the_exposure_of_the_service_does_not_grow(unit: Path) -> None:
    done = analyzed("security", "--offline=yes", "--no-pager", str(unit))
    found = re.search(rf"Overall exposure level for {re.escape(UNIT)}: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX


def test_words_of_the_command_are_escaped() -> None:
    text = unit_text(("/opt/a b/python", "--sim", "50%$x"))
    assert "ExecStart='/opt/a b/python' --sim '50%%$$x'\n" in text


@pytest.mark.parametrize(
    "line",
    ["Type=notify", "Restart=on-failure", "KillMode=process", "StandardError=journal", "WantedBy=multi-user.target"],
)
def test_the_unit_has_what_the_service_is_documented_to_do(line: str) -> None:
    assert line in unit_text(COMMAND).splitlines()
