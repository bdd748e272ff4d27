"""CDI specs: for all edits, a file in the directory is complete and valid for a runtime.

The rules are written down here a second time, from the CDI specification and not from our code.
"""

from __future__ import annotations

import json
import os
import re
import stat
import string
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.adapters.cdi import (
    ContainerEdits,
    DeviceNode,
    MountEdit,
    SpecFile,
    list_specs,
    remove_spec,
    sweep_leftovers,
    write_spec,
)
from calabash.model.errors import CalabashError, Reason

KIND = "calabash.dev/slot"
SIMPLE = {"t0-1": ContainerEdits(env=(("A", "1"),))}

# What each version brought; a runtime refuses a field that is newer than the version the file names.
_SINCE = {"hostPath": (0, 5), "additionalGids": (0, 7), "intelRdt": (0, 7), "annotations": (0, 6), "netDevices": (1, 1)}


def check(spec: dict[str, Any]) -> None:
    """Check the rules of CDI for a spec."""
    assert set(spec) == {"cdiVersion", "kind", "devices"}
    version = tuple(int(part) for part in spec["cdiVersion"].split(".")[:2])
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]", spec["kind"])
    assert spec["devices"]
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names)
    for device in spec["devices"]:
        assert set(device) == {"name", "containerEdits"}
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?", device["name"])
        check_edits(device["containerEdits"], version)


def check_edits(edits: dict[str, Any], version: tuple[int, ...]) -> None:
    assert edits
    assert set(edits) <= {"env", "deviceNodes", "mounts", "additionalGids"}
    assert version >= _SINCE["additionalGids"] or "additionalGids" not in edits
    assert all("=" in one and not one.startswith("=") for one in edits.get("env", ()))
    for node in edits.get("deviceNodes", ()):
        assert set(node) <= {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
        assert version >= _SINCE["hostPath"] or "hostPath" not in node
        assert node["path"].startswith("/")
        assert node.get("type", "c") in {"b", "c", "u", "p"}
        assert set(node["permissions"]) <= set("rwm")
    for mount in edits.get("mounts", ()):
        assert set(mount) <= {"hostPath", "containerPath", "options", "type"}
        assert version >= (0, 4) or "type" not in mount
        assert mount["hostPath"].startswith("/")
        assert mount["containerPath"].startswith("/")
        assert all(isinstance(option, str) and option for option in mount["options"])


text = st.text(max_size=20)
paths = st.one_of(text, text.map(lambda tail: f"/{tail}"), st.just("/dev/nvidia0"))
number = st.integers(-2, 2**33)
nodes = st.builds(
    DeviceNode,
    path=paths,
    host_path=st.one_of(st.just(""), paths),
    type=st.sampled_from(["", "c", "b"]),
    major=number,
    minor=number,
    permissions=st.one_of(st.sampled_from(["rw", "rwm", "r"]), st.text("rwmx", max_size=4)),
    uid=st.none() | number,
    gid=st.none() | number,
    file_mode=st.none() | number,
)
mounts = st.builds(
    MountEdit,
    host_path=paths,
    container_path=paths,
    options=st.lists(st.one_of(st.sampled_from(["ro", "bind"]), text), max_size=3).map(tuple),
)
names = st.one_of(st.sampled_from(["t0-1", "t1-2f", "a:b.c"]), text)
keys = st.one_of(st.sampled_from(["A", "B_2"]), text)
edits = st.builds(
    ContainerEdits,
    env=st.lists(st.tuples(keys, text), max_size=3).map(tuple),
    mounts=st.lists(mounts, max_size=2).map(tuple),
    device_nodes=st.lists(nodes, max_size=2).map(tuple),
    additional_gids=st.lists(number, max_size=2).map(tuple),
)
kinds = st.one_of(st.just(KIND), st.just("calabash.dev/a.b"), text)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=kinds, devices=st.dictionaries(names, edits, max_size=3))
def test_written_file_is_a_valid_spec_and_invalid_edits_are_refused(
    kind: str, devices: dict[str, ContainerEdits]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check_written(Path(directory), kind, devices)


def check_written(directory: Path, kind: str, devices: dict[str, ContainerEdits]) -> None:
    try:
        write_spec(directory, "one", kind, devices)
    except CalabashError as error:
        assert error.reason is Reason.BAD_REQUEST  # noqa: PT017 - either outcome is good
        assert list(directory.iterdir()) == []
        return
    spec = json.loads((directory / "one.json").read_text())
    check(spec)
    assert {device["name"] for device in spec["devices"]} == set(devices)


slots = st.builds(
    "{}-{:08x}".format, st.text(string.ascii_lowercase, min_size=1, max_size=8), st.integers(0, 2**32 - 1)
)
variables = st.tuples(
    st.text(string.ascii_uppercase, min_size=1, max_size=8),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30),
)
sane = st.builds(
    ContainerEdits,
    env=st.lists(variables, min_size=1, max_size=5).map(tuple),
    device_nodes=st.lists(
        st.builds(DeviceNode, path=st.just("/dev/nvidia0"), host_path=st.sampled_from(["", "/dev/x"])), max_size=2
    ).map(tuple),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(devices=st.dictionaries(slots, sane, min_size=1, max_size=8))
def test_every_sane_spec_is_written_with_every_variable_as_it_was(devices: dict[str, ContainerEdits]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check_kept(Path(directory), devices)


def check_kept(directory: Path, devices: dict[str, ContainerEdits]) -> None:
    write_spec(directory, "one", KIND, devices)
    spec = json.loads((directory / "one.json").read_text())
    check(spec)
    for device in spec["devices"]:
        wanted = devices[device["name"]]
        assert device["containerEdits"]["env"] == [f"{key}={value}" for key, value in wanted.env]
    assert list_specs(directory) == (SpecFile(name="one", kind=KIND, devices=tuple(devices)),)


@pytest.mark.parametrize(
    ("kind", "change", "version"),
    [
        (KIND, {}, "0.5.0"),
        ("calabash.dev/a.b", {}, "0.6.0"),
        (KIND, {"additional_gids": (44,)}, "0.7.0"),
    ],
    ids=["plain", "dotted", "gids"],
)
def test_spec_names_the_lowest_version_that_has_its_fields(
    tmp_path: Path, kind: str, change: dict[str, Any], version: str
) -> None:
    write_spec(tmp_path, "one", kind, {"d": ContainerEdits(env=(("A", "1"),), **change)})
    assert json.loads((tmp_path / "one.json").read_text())["cdiVersion"] == version


def test_missing_directory_is_made_and_root_alone_may_read_the_file(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_spec(tmp_path / "run" / "cdi", "one", KIND, SIMPLE)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "run" / "cdi" / "one.json").stat().st_mode) == 0o600


def test_readers_see_whole_specs_while_they_are_replaced(tmp_path: Path) -> None:
    many = {f"t0-{n}": ContainerEdits(env=(("A", "x" * 500),)) for n in range(50)}
    write_spec(tmp_path, "one", KIND, many)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_spec(tmp_path, "one", KIND, many)
            write_spec(tmp_path, "one", KIND, SIMPLE)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            spec = json.loads((tmp_path / "one.json").read_bytes())
            assert len(spec["devices"]) in {1, 50}
            others = [path.name for path in tmp_path.iterdir() if path.name != "one.json"]
            assert not any(name.endswith((".json", ".yaml")) for name in others)
    finally:
        stop.set()
        writer.join()
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_the_file_is_put_in_place_by_a_rename_within_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd does not notice files that are moved there from another directory, or links."""
    seen: list[tuple[Path, Path]] = []
    rename = Path.rename

    def note(old: Path, new: Path) -> Path:
        seen.append((old, new))
        return rename(old, new)

    monkeypatch.setattr(Path, "rename", note)
    write_spec(tmp_path, "one", KIND, SIMPLE)
    ((old, new),) = seen
    assert old.parent == new.parent == tmp_path


def test_link_at_the_path_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    (cdi / "one.json").symlink_to(victim)
    assert list_specs(cdi) == (SpecFile(name="one", kind="", devices=()),)
    write_spec(cdi, "one", KIND, SIMPLE)
    assert victim.read_text() == "mine"
    assert not (cdi / "one.json").is_symlink()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a" * 300, "a\n"])
def test_a_file_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    for act in (lambda: write_spec(tmp_path / "cdi", name, KIND, SIMPLE), lambda: remove_spec(tmp_path / "cdi", name)):
        with pytest.raises(CalabashError) as caught:
            act()
        assert caught.value.reason is Reason.BAD_REQUEST


def test_specs_are_listed_by_prefix_and_invalid_files_without_a_spec(tmp_path: Path) -> None:
    assert list_specs(tmp_path / "absent") == ()
    write_spec(tmp_path, "calabash-t1", KIND, SIMPLE)
    write_spec(tmp_path, "other", KIND, SIMPLE)
    (tmp_path / "calabash-bad.json").write_text("{")
    (tmp_path / "calabash-x.yaml").write_text("")
    os.mkfifo(tmp_path / "calabash-pipe.json")
    assert list_specs(tmp_path, "calabash-") == (
        SpecFile(name="calabash-bad", kind="", devices=()),
        SpecFile(name="calabash-pipe", kind="", devices=()),
        SpecFile(name="calabash-t1", kind=KIND, devices=("t0-1",)),
    )


def test_a_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as caught:
        write_spec(tmp_path, "one", KIND, {"d": ContainerEdits(env=(("A", "\udc80"),))})
    assert caught.value.reason is Reason.BAD_REQUEST


def test_remove_returns_true_only_if_there_was_a_spec(tmp_path: Path) -> None:
    write_spec(tmp_path, "one", KIND, SIMPLE)
    assert remove_spec(tmp_path, "one")
    assert not remove_spec(tmp_path, "one")


def test_temporary_files_of_a_dead_writer_are_removed(tmp_path: Path) -> None:
    write_spec(tmp_path, "calabash-a", KIND, SIMPLE)
    (tmp_path / "calabash-b.0011aabb.new").write_text("{")
    (tmp_path / "other.0011aabb.new").write_text("{")
    assert sweep_leftovers(tmp_path, "calabash-") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calabash-a.json", "other.0011aabb.new"]
    assert sweep_leftovers(tmp_path / "absent", "calabash-") == 0


def test_write_to_a_read_only_directory_fails_with_a_reason_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file")
    with pytest.raises(CalabashError) as caught:
        write_spec(tmp_path / "cdi", "one", KIND, SIMPLE)
    assert caught.value.reason is Reason.BAD_FILE
    assert "/var/run/cdi" in caught.value.hint


def test_a_spec_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CalabashError) as caught:
        write_spec(tmp_path, "one", KIND, {"d": ContainerEdits(env=(("A", "x" * (1 << 20)),))})
    assert caught.value.reason is Reason.TOO_LARGE
    assert list(tmp_path.iterdir()) == []
