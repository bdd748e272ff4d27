"""The systemd unit of the pool is valid, and confines it at least as far as it did."""

from __future__ import annotations

import os
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


def test_words_of_the_command_are_quoted() -> None:
    text = unit_text(("/opt/a b/python", "--sim", "50%$x"))
    assert 'ExecStart=":/opt/a b/python" --sim "50%%$x"\n' in text
    assert "ExecStart=/opt/python -m calabash.cli.main up\n" in unit_text(
        ("/opt/python", "-m", "calabash.cli.main", "up")
    )


ODD = [
    "it's",
    'a "b"',
    "50%",
    "%n",
    "$HOME",
    "${HOME}",
    "$$",
    "back\\slash",
    "\\",
    ";",
    "a;b",
    "",
    "#",
    "line\nend",
    "\x01",
]


@pytest.mark.parametrize(
    "name", ["python", "it's", "a b", "50%n", "$HOME", 'a"b', "back\\slash", "a=b", "größe", "x\udcff"]
)
def test_systemd_reads_the_words_of_the_command(tmp_path: Path, name: str) -> None:
    """The directory of the installation may have any name."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: tools/bootstrap --tests")
    program = tmp_path / name / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to("/bin/true")
    command = [str(program), *ODD, "tail\udcff"]
    path = tmp_path / UNIT
    path.write_text(unit_text(command))
    done = analyzed("verify", "--man=no", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = command_read_by_systemd(path)
    if found[0] == "/bin/sh":
        assert found[1:3] == ["-c", 'exec "$0" "$@"']
        found = found[3:]
    assert found == command


def command_read_by_systemd(path: Path) -> list[str]:
    """Return the words of the unit's command as systemd has parsed it, from the dump of its log."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_LOG_LEVEL": "debug", "SYSTEMD_LOG_TARGET": "console"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    unit = done.stdout.partition(f"-> Unit {UNIT}:".encode())[2]
    line = os.fsdecode(re.findall(rb"Command Line: (.*)", unit)[0])
    return [
        plain or os.fsdecode(re.sub(rb"\\([0-7]{3}|.)", _character, os.fsencode(quoted), flags=re.DOTALL))
        for quoted, plain in re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    ]


def _character(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8)]) if len(code) == 3 else {b"n": b"\n", b"t": b"\t"}.get(code, code)


@pytest.mark.parametrize(
    "line",
    ["Type=notify", "Restart=on-failure", "KillMode=process", "StandardError=journal", "WantedBy=multi-user.target"],
)
def test_the_unit_has_what_the_service_is_documented_to_do(line: str) -> None:
    assert line in unit_text(COMMAND).splitlines()


def test_pool_keeps_the_capabilities_without_which_it_does_not_protect_its_slots() -> None:
    text = unit_text(COMMAND)
    (removed,) = (line for line in text.splitlines() if line.startswith("CapabilityBoundingSet=~"))
    assert "CAP_SYS_BOOT" in removed
    # It seals slots, raises limits of programs, joins their namespaces and control groups, and changes users.
    needed = {"CAP_LINUX_IMMUTABLE", "CAP_SYS_RESOURCE", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SETUID", "CAP_KILL"}
    assert not needed & set(removed.removeprefix("CapabilityBoundingSet=~").split())
