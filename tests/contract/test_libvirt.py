"""Output of `calabash device vm attach --xml`, validated by libvirt's own schema of a machine's devices.

The schema comes with Debian's libvirt0, xmllint with libxml2-utils. Unpacked elsewhere they are found by LIBVIRT_SCHEMAS
(the directory) and PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from calabash.adapters.host.pci.libvirt import device_xml

SCHEMAS = Path(os.environ.get("LIBVIRT_SCHEMAS", "/usr/share/libvirt/schemas"))
XMLLINT = shutil.which("xmllint")
MACHINE = """\
<domain type='kvm'>
  <name>web1</name>
  <memory unit='GiB'>4</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
{}
  </devices>
</domain>
"""


def _valid(file: Path, devices: str) -> bool:
    if XMLLINT is None or not (SCHEMAS / "domain.rng").exists():
        pytest.skip("libvirt's schema or xmllint is not on this machine: install libvirt0 and libxml2-utils")
    file.write_text(MACHINE.format(devices))
    command = [XMLLINT, "--noout", "--nonet", "--relaxng", str(SCHEMAS / "domain.rng"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode == 0


@pytest.mark.parametrize(
    "names",
    [
        ("0000:3b:00.0",),
        ("0000:3b:00.0", "0000:3b:00.1"),
        ("0001:af:00.4",),
        ("5a1e9c1c-6b1d-5d0c-9c59-6a9e0cf7f0b1",),
    ],
)
def test_xml_of_every_kind_of_device_is_valid(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert _valid(tmp_path / "machine.xml", "".join(device_xml(name) for name in names))


def test_schema_refuses_invalid_xml(tmp_path: Path) -> None:
    wrong = device_xml("0000:3b:00.0").replace("function='0x0'", "function='0x8'")
    assert not _valid(tmp_path / "machine.xml", wrong)
