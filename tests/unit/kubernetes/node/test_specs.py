"""Spec files live as long as their names are in force, and no file of others is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calabash.kubernetes.names import CDI_KIND, GPUS
from calabash.kubernetes.node.installed import install
from calabash.kubernetes.node.specs import KEPT_S, remove_stale
from calabash.kubernetes.node.tokens import device_name, new_name, qualified, spec_name, token_ids
from calabash.model.errors import CalabashError
from calabash.seams.cdi import ContainerEdits, list_specs, write_spec
from calabash.seams.kubelet.protocol import CheckpointEntry

EDITS = ContainerEdits(env=(("A", "1"),))


def entry(*names: str) -> CheckpointEntry:
    return CheckpointEntry(pod_uid="u", container="c", resource=GPUS, device_ids=("slot-0001",), cdi_names=names)


def old(directory: Path, name: str) -> None:
    long_ago = (directory / f"{name}.json").stat().st_mtime - KEPT_S - 1
    os.utime(directory / f"{name}.json", (long_ago, long_ago))


def test_what_is_in_force_or_young_or_of_others_stays(tmp_path: Path) -> None:
    for token in ("slot-0001", "slot-0002", "slot-0003"):
        write_spec(tmp_path, spec_name([token]), CDI_KIND, {f"{token}-aa": EDITS})
        if token != "slot-0003":
            old(tmp_path, spec_name([token]))
    write_spec(tmp_path, "nvidia", "nvidia.com/gpu", {"0": EDITS})
    old(tmp_path, "nvidia")
    assert remove_stale(tmp_path, lambda: [entry(qualified("slot-0001-aa"))]) == [spec_name(["slot-0002"])]
    assert len(list_specs(tmp_path)) == 3


def test_nothing_is_removed_while_the_kubelet_cannot_be_asked(tmp_path: Path) -> None:
    def unreadable() -> list[CheckpointEntry]:
        raise CalabashError("version 9")

    write_spec(tmp_path, spec_name(["slot-0001"]), CDI_KIND, {"slot-0001-aa": EDITS})
    old(tmp_path, spec_name(["slot-0001"]))
    assert remove_stale(tmp_path, unreadable) == []
    assert len(list_specs(tmp_path)) == 1


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
