"""Passthrough on a real kernel with an IOMMU: the agent's own code gives devices to virtual machines and takes them back.

All cases run once, in an emulated machine (``inside.py``); each test checks one part of the output. The answers of the kernel
itself must be those of the simulated PCI bus (``pci_sim``).
"""

from __future__ import annotations

import pytest
from tests.vfio.conftest import Cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_passthrough_without_an_iommu_is_refused_with_a_hint(emulated: Cases) -> None:
    case = emulated["no IOMMU"]
    assert (case["translates"], case["reason"]) == (False, "unhealthy")
    assert "in no IOMMU group" in case["message"]
    assert "intel_iommu=on" in case["hint"]
    assert emulated["the kernel without IOMMU"]["bind"] == "EINVAL"


def test_missing_modules_are_noticed_before_anything_is_unbound(emulated: Cases) -> None:
    assert emulated["no module"]["hint"] == "modprobe vfio-pci"
    assert emulated["the kernel without the module"]["bind"] == "ENOENT"
    assert emulated["no second module"]["hint"] == "modprobe vfio_iommu_type1"


def test_the_kernel_refuses_with_the_numbers_that_the_product_knows(emulated: Cases) -> None:
    case = emulated["what the kernel refuses"]
    refused = {"no_override", "no_device", "no_device_to_probe", "not_bound"}
    assert {name: case[name] for name in refused} == dict.fromkeys(refused, "ENODEV")
    assert emulated["no such device"]["reason"] == "not_found"
    assert "bridge" in emulated["a bridge"]["message"]


def test_a_card_is_bound_and_a_virtual_machine_uses_it(emulated: Cases) -> None:
    bound = emulated["bound"]
    assert (bound["driver"], bound["addresses"]) == ("vfio-pci", "0000:02:00.0")
    assert bound["nodes"][0] == "/dev/vfio/vfio"
    assert bound["nodes"][1].removeprefix("/dev/vfio/").isdigit()
    said = emulated["used inside"]["said"]
    assert "pci 1234:11e8" in said
    assert "inverse=f0f0edcb factorial=000013b0 dma=right" in said  # registers, arithmetic, and its DMA both ways


def test_card_that_its_driver_does_not_list_is_lent_and_not_lost(emulated: Cases) -> None:
    assert (emulated["lent is not lost"]["changes"], emulated["lent is not lost"]["health"]) == (0, ["healthy"])


def test_a_group_has_one_user_at_a_time(emulated: Cases) -> None:
    assert "Device or resource busy" in emulated["two users of a group"]["said"]


def test_an_unbind_that_blocks_is_given_up_in_time_and_the_card_comes_back_later(emulated: Cases) -> None:
    blocked = emulated["unbind blocks"]
    assert blocked["reason"] == "timeout"
    assert "held by pid" in blocked["message"]
    assert "qemu-system-x86" in blocked["message"]
    waiting = emulated["on its way back"]
    assert waiting["health"] == ["draining"]
    assert "is not detached yet: its IOMMU group is still open: pid" in waiting["news"][0]
    assert (emulated["back"]["back"], emulated["back"]["driver"]) == (True, "")


def test_card_that_a_process_has_open_is_not_taken(emulated: Cases) -> None:
    case = emulated["open"]
    assert (case["reason"], case["driver"]) == ("conflict", "nvme")
    assert f"pid {case['pid']} (sleep)" in case["message"]


def test_all_functions_of_a_card_go_and_come_together(emulated: Cases) -> None:
    given = emulated["companions"]
    assert given["drivers"] == ["vfio-pci", "vfio-pci"]
    assert given["said"].count("pci 1b36:0010 nvme=00010400") == 2
    back = emulated["returned to its driver"]
    assert back["drivers"] == ["nvme", "nvme"]
    assert back["disk"] == "a disk of an emulated machine"
    assert not back["book"]


def test_restarted_pool_knows_lent_cards_and_fetches_those_of_ended_allocations(emulated: Cases) -> None:
    again = emulated["after a restart"]
    assert again["listed"][1] == "0000:01:00.0"  # in its place, although its driver does not list it
    assert again["health"] == ["healthy"]
    assert emulated["returned to its driver"]["health"] == ["recovering"]  # until it has passed a test


def test_a_group_with_a_device_of_the_host_is_refused_where_the_kernel_would_bind(emulated: Cases) -> None:
    case = emulated["not viable"]
    assert case["driver"] == ""
    assert "0000:04:02.0 (virtio-pci) of the same IOMMU group is used by the host" in case["message"]
    kernel = emulated["the kernel binds it all the same"]
    assert kernel["driver"] == "vfio-pci"
    assert "is not viable" in kernel["said"]


def test_a_neighbour_without_a_driver_and_a_bridge_do_no_harm(emulated: Cases) -> None:
    assert "dma=right" in emulated["viable without the neighbour's driver"]["said"]
    owned = emulated["the neighbour's driver while the group is owned"]
    assert owned["bind"] == "EBUSY"
    after = emulated["the neighbour afterwards"]
    assert (after["meanwhile"], after["driver"]) == ("", "virtio-pci")


def test_invalid_numbers_of_virtual_functions_are_refused(emulated: Cases) -> None:
    assert "it can have 2 (ERANGE)" in emulated["too many functions"]["message"]
    assert "(ENOENT)" in emulated["no SR-IOV"]["message"]
    assert "(EBUSY)" in emulated["another number of functions"]["message"]


def test_virtual_functions_of_a_card_are_given_to_several_virtual_machines(emulated: Cases) -> None:
    assert emulated["profiles"]["profiles"] == [["vf", 2048, 2]]
    case = emulated["functions"]
    assert (len(set(case["given"])), case["apart"]) == (2, True)
    assert "pci 1b36:0010" in case["said"]
    assert emulated["one too many"]["reason"] == "no_capacity"
    assert emulated["whole while divided"]["reason"] == "no_capacity"


def test_virtual_functions_in_use_delay_no_other_request_and_are_removed_when_free(emulated: Cases) -> None:
    assert emulated["functions in use"]["reason"] == "timeout"
    assert (emulated["functions gone"]["gone"], emulated["functions gone"]["driver"]) == (True, "nvme")


def test_no_write_is_left_blocked_in_the_kernel(emulated: Cases) -> None:
    assert emulated["done"]["helpers"] == 0
