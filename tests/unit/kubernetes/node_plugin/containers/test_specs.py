"""Tests of CDI specs: they exist as long as their names are in use, and files of other programs stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.adapters.cdi import ContainerEdits, list_specs, write_spec
from calabash.adapters.kubelet.protocol import CheckpointEntry
from calabash.kubernetes.node_plugin.containers.device_ids import device_name, new_name, qualified, spec_name, token_ids
from calabash.kubernetes.node_plugin.containers.installed_files import install
from calabash.kubernetes.node_plugin.containers.specs import POLL_S, SlotSpecs
from calabash.kubernetes.objects.names import CDI_KIND, GPUS
from calabash.model.errors import CalabashError

EDITS = ContainerEdits(env=(("A", "1"),))


def entry(*names: str) -> CheckpointEntry:
    return CheckpointEntry(pod_uid="u", container="c", resource=GPUS, device_ids=("slot-0001",), cdi_names=names)


class Specs:
    """Spec files in a directory, a checkpoint, and a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.in_force: list[CheckpointEntry] = []
        self.reads = 0
        self.unreadable = False
        self.now_s = 0.0
        self.specs = SlotSpecs(directory, self.checkpoint, now_s=lambda: self.now_s)

    def checkpoint(self) -> list[CheckpointEntry]:
        self.reads += 1
        if self.unreadable:
            raise CalabashError("version 9")
        return self.in_force

    def sweep(self) -> list[str]:
        self.now_s += POLL_S
        return self.specs.sweep()

    def names(self) -> set[str]:
        return {spec.name for spec in list_specs(self.directory)}


@pytest.fixture
def specs(tmp_path: Path) -> Specs:
    return Specs(tmp_path)


def test_what_is_out_of_force_at_two_looks_goes_and_what_is_in_force_or_of_others_stays(specs: Specs) -> None:
    for token in ("slot-0001", "slot-0002"):
        specs.specs.write([token], {f"{token}-aa": EDITS})
    write_spec(specs.directory, "nvidia", "nvidia.com/gpu", {"0": EDITS})
    specs.in_force = [entry(qualified("slot-0001-aa"))]
    assert specs.sweep() == []
    assert specs.sweep() == [spec_name(["slot-0002"])]
    assert specs.names() == {spec_name(["slot-0001"]), "nvidia"}


def test_a_file_that_was_written_anew_since_the_last_look_stays(specs: Specs) -> None:
    specs.specs.write(["slot-0001"], {"slot-0001-aa": EDITS})
    specs.sweep()

    def written_while_it_is_looked_at() -> list[CheckpointEntry]:
        specs.specs.write(["slot-0001"], {"slot-0001-bb": EDITS})
        return []

    specs.specs._checkpoint = written_while_it_is_looked_at
    assert specs.sweep() == []
    assert specs.names() == {spec_name(["slot-0001"])}


def test_the_checkpoint_is_read_seldom_and_only_when_there_is_a_file(specs: Specs) -> None:
    specs.sweep()
    assert specs.reads == 0
    specs.specs.write(["slot-0001"], {"slot-0001-aa": EDITS})
    specs.sweep()
    for _ in range(20):
        specs.specs.sweep()
    assert specs.reads == 1


def test_nothing_is_removed_while_the_kubelet_cannot_be_asked(specs: Specs) -> None:
    specs.specs.write(["slot-0001"], {"slot-0001-aa": EDITS})
    specs.sweep()
    specs.unreadable = True
    assert specs.sweep() == []
    specs.unreadable = False
    assert specs.sweep() == []  # earlier observations no longer count
    assert specs.sweep() == [spec_name(["slot-0001"])]


def test_what_an_agent_left_that_was_killed_while_it_wrote_is_gone_after_the_next_start(tmp_path: Path) -> None:
    write_spec(tmp_path, spec_name(["slot-0001"]), CDI_KIND, {"slot-0001-aa": EDITS})
    half = tmp_path / f"{spec_name(['slot-0002'])}.0123abcd.new"
    half.write_text("{")
    Specs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{spec_name(['slot-0001'])}.json"]


def test_names_are_new_each_time_and_files_are_per_set_of_tokens() -> None:
    assert new_name(["slot-0001"]) != new_name(["slot-0001"])
    assert device_name(qualified("slot-0001-aa")) == "slot-0001-aa"
    assert device_name("nvidia.com/gpu=0") is None
    assert spec_name(["slot-0001", "slot-0002"]) == spec_name(["slot-0002", "slot-0001"])
    assert (
        len({spec_name(["slot-0001"]), spec_name(["slot-0001", "slot-0002"]), spec_name(["slot-0001", "slot-0003"])})
        == 3
    )
    assert len(set(token_ids(8))) == 8 * 64
    assert all(len(name) <= 63 for name in token_ids(64))


def test_an_installed_file_is_never_changed_and_a_new_release_has_its_own(tmp_path: Path) -> None:
    source = tmp_path / "libcalabash.so"
    source.write_bytes(b"first")
    first = install(source, tmp_path / "lib")
    assert install(source, tmp_path / "lib") == first
    source.write_bytes(b"second")
    second = install(source, tmp_path / "lib")
    assert (first.read_bytes(), second.read_bytes()) == (b"first", b"second")
    assert first.name == second.name == "libcalabash.so"
    assert second.stat().st_mode & 0o777 == 0o755


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    source = tmp_path / "libcalabash.so"
    source.write_bytes(b"x")
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(CalabashError, match="cannot install"):
        install(source, blocked)
