"""Tests of the table of cards: the generated code and the simulated drivers agree with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native.simnode import Node, compile_holder
from tests.native.test_api_table import load

cards: Any = load("cards")
CARDS: list[dict[str, str]] = cards.load_cards()
MIG: dict[str, list[dict[str, str]]] = cards.load_mig()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with one card of each model, in the order of the table."""
    directory = tmp_path_factory.mktemp("cards")
    made = Node(directory / "node.state", ",".join(card["key"] for card in CARDS), compile_holder())
    yield made
    made.close()


def test_every_card_of_the_table_is_shown_with_its_figures(node: Node) -> None:
    shown = node.show()["devices"]
    assert [d["model"] for d in shown] == [card["key"] for card in CARDS]
    for device, card in zip(shown, CARDS, strict=True):
        assert device["name"] == card["name"]
        assert device["memory_total_bytes"] == cards.number("memory_bytes", card["memory_bytes"])
        assert device["memory_reserved_bytes"] == cards.number("reserved_bytes", card["reserved_bytes"])
        assert device["sm_count"] == int(card["sm_count"])


def test_nvml_reports_the_figures_of_the_table(node: Node) -> None:
    answer = node.nvml(
        """
        def figures(h):
            pci = nvmlDeviceGetPciInfo(h)
            return {
                "name": nvmlDeviceGetName(h),
                "nvml_brand": nvmlDeviceGetBrand(h),
                "nvml_arch": nvmlDeviceGetArchitecture(h),
                "cc": list(nvmlDeviceGetCudaComputeCapability(h)),
                "tdp_mw": nvmlDeviceGetPowerManagementLimit(h),
                "pci_device_id": pci.pciDeviceId,
                "pci_subsystem_id": pci.pciSubSystemId,
                "pcie_gen": nvmlDeviceGetMaxPcieLinkGeneration(h),
                "bus_width_bits": nvmlDeviceGetMemoryBusWidth(h),
                "vbios": nvmlDeviceGetVbiosVersion(h),
                "board_part": nvmlDeviceGetBoardPartNumber(h),
            }
        answer = [figures(h) for h in handles()]
        """
    )
    for got, card in zip(answer, CARDS, strict=True):
        assert got.pop("cc") == [cards.number("cc_major", card["cc_major"]), cards.number("cc_minor", card["cc_minor"])]
        expected = {k: card[k] if k in cards.TEXTS else cards.number(k, card[k]) for k in got}
        assert got == expected, card["key"]


def test_nvml_reports_the_mig_profiles_of_the_table_and_of_no_other_card(node: Node) -> None:
    answer = node.nvml(
        """
        import ctypes
        def places(h, profile):
            count = ctypes.c_uint(0)
            nvmlDeviceGetGpuInstancePossiblePlacements(h, profile, None, ctypes.byref(count))
            array = (c_nvmlGpuInstancePlacement_t * count.value)()
            nvmlDeviceGetGpuInstancePossiblePlacements(h, profile, array, ctypes.byref(count))
            return [p.start for p in array], array[0].size
        def profiles(h):
            found = []
            for i in range(NVML_GPU_INSTANCE_PROFILE_COUNT):
                try:
                    p = nvmlDeviceGetGpuInstanceProfileInfo(h, i, version=2)
                except NVMLError:
                    continue
                found.append([p.name, i, p.id, p.sliceCount, p.instanceCount, p.memorySizeMB,
                              p.multiprocessorCount, p.copyEngineCount, p.decoderCount, p.jpegCount, p.ofaCount,
                              *places(h, p.id)])
            return found
        answer = [profiles(h) for h in handles()]
        """
    )
    numbers = (
        *("nvml_enum", "id", "slices", "max_count", "memory_mib", "sm_count"),
        *("copy_engines", "decoders", "jpeg_engines", "ofa_engines"),
    )
    for got, card in zip(answer, CARDS, strict=True):
        expected = [
            [p["name"], *(int(p[n]) for n in numbers), [int(s) for s in p["starts"].split(",")], int(p["size"])]
            for p in MIG.get(card["key"], [])
        ]
        strip = sorted([name.removeprefix("MIG "), *rest] for name, *rest in got)
        assert strip == sorted(expected), card["key"]


def test_size_may_be_written_in_binary_units_and_an_empty_field_is_zero() -> None:
    assert cards.number("memory_bytes", "15GiB") == 15 << 30
    assert cards.number("l2_bytes", "96KiB") == 96 << 10
    assert cards.number("pci_device_id", "0x1DB510DE") == 0x1DB510DE
    assert cards.number("nvlink_count", "") == 0
    assert cards.number("nvml_arch", "HOPPER") == 9


@pytest.mark.parametrize("text", ["15GB", "-1", "many", "1.5GiB", "0x12zz"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(cards.TableError, match="is not a number"):
        cards.number("memory_bytes", text)


def test_row_with_a_field_too_few_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "cards.tsv"
    table.write_text("key\tA\tB\nsm_count\t1\n")
    with pytest.raises(cards.TableError, match="row 1 has 2 fields, the first has 3"):
        cards.load_cards(table)
