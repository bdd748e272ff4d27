"""XIDs (NVIDIA's error codes) that are read from the kernel's log, because they occurred before the agent ran."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from calabash.adapters.gpu.nvidia.past_faults import NvidiaPast
from calabash.adapters.gpu.protocol import EventKind
from calabash.model.device import Device, DeviceUuid

CARDS = [
    Device(uuid=DeviceUuid("GPU-a"), index=0, vendor="nvidia", model="H100", memory_mib=1, pci_bus_id="00000000:3B:00.0"),
    Device(uuid=DeviceUuid("GPU-b"), index=1, vendor="nvidia", model="H100", memory_mib=1, pci_bus_id="00000001:AF:00.0"),
]  # fmt: skip
LOG = b"""\
6,1,1000,-;Linux version 6.8
 SUBSYSTEM=none
4,977,2500000,-;NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)
3,978,3000000,-;NVRM: Xid (PCI:0001:af:00): 79, pid=4711, name=python, GPU has fallen off the bus.
4,979,3100000,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=1, name=a, Contained: SM
4,980,3200000,-;NVRM: Xid (PCI:0000:99:00): 48, a card that is not ours
12,981,3300000,-;NVRM: Xid (PCI:0000:3b:00): many
5,982,3400000,c;somebody writes NVRM: Xid (PCI:0000:3b:00): 48
4,983,4000000,-;NVRM: Xid (PCI:0000:3b:00): 13, the end is cut"""


def test_xids_of_our_cards_are_found_with_the_time_at_which_they_were(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_bytes(LOG + b"\n")
    booted = time.time() - time.monotonic()
    found = NvidiaPast(None, lambda: CARDS, log=tmp_path / "kmsg").faults()
    assert [(f.event.uuid, f.event.code, f.event.kind) for f in found] == [
        ("GPU-a", 48, EventKind.XID),
        ("GPU-b", 79, EventKind.LOST),
        ("GPU-a", 13, EventKind.XID),
    ]
    assert [f.at_s - booted for f in found] == pytest.approx([2.5, 3.0, 4.0], abs=0.5)


def test_a_log_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert NvidiaPast(None, lambda: CARDS, log=tmp_path / "none").faults() == ()
    assert NvidiaPast(None, lambda: CARDS, log=tmp_path).faults() == ()


def test_cards_without_a_place_on_the_bus_and_odd_text_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_bytes(bytes(range(256)) * 200 + b"\n" + LOG)
    odd = Device(uuid=DeviceUuid("GPU-c"), index=2, vendor="nvidia", model="T4", memory_mib=1, pci_bus_id="no place")
    assert NvidiaPast(None, lambda: [odd], log=tmp_path / "kmsg").faults() == ()
