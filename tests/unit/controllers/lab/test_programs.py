"""Selection of OVN programs, and errors if none are usable."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from calabash.adapters.host import children
from calabash.controllers.lab import packages, programs
from calabash.model.errors import CalabashError, Reason


def _tree(root: Path, *, ovs: str, ovn: str) -> Path:
    """Create programs that print their version, in the directories of Debian."""
    for part, names, version in (
        ("usr/sbin", ("ovs-vswitchd", "ovsdb-server"), ovs),
        ("usr/bin", ("ovsdb-tool", "ovs-vsctl", "ovs-appctl", "ovs-ofctl"), ovs),
        ("usr/bin", ("ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl", "ovn-trace", "ovn-appctl"), ovn),
    ):
        (root / part).mkdir(parents=True, exist_ok=True)
        for name in names:
            (root / part / name).write_text(f"#!/bin/sh\necho '{name} (of a test) {version}'\n")
            (root / part / name).chmod(0o755)
    for name in ("ovn/ovn-nb", "ovn/ovn-sb", "openvswitch/vswitch"):
        (root / "usr/share" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "usr/share" / f"{name}.ovsschema").touch()
    return root


def test_installed_programs_are_used_if_new_enough(tmp_path: Path) -> None:
    own, why = programs.installed(_tree(tmp_path, ovs="3.5.0", ovn="25.03.0"))
    assert own is not None
    assert (own.ovs, own.ovn, why) == ((3, 5, 0), (25, 3, 0), "")
    assert own.command("ovn-nbctl") == (str(tmp_path / "usr/bin/ovn-nbctl"),)


@pytest.mark.parametrize(
    ("ovs", "ovn", "said"),
    [("3.1.0", "23.03.1", "reuses source ports"), ("3.1.2", "24.03.0", "3.1.2"), ("3.3.0", "23.09.0", "oldest")],
)
def test_old_programs_are_not_used_and_the_reason_is_given(tmp_path: Path, ovs: str, ovn: str, said: str) -> None:
    own, why = programs.installed(_tree(tmp_path, ovs=ovs, ovn=ovn))
    assert own is None
    assert said in why


def test_missing_program_is_named(tmp_path: Path) -> None:
    root = _tree(tmp_path, ovs="3.5.0", ovn="25.03.0")
    (root / "usr/bin/ovn-trace").unlink()
    assert programs.installed(root) == (None, "OVN is not installed here: no ovn-trace")


def test_broken_cache_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(CalabashError, match="no C library") as told:
        programs.of_tree(tmp_path)
    assert told.value.reason is Reason.BAD_FILE
    assert "remove" in told.value.hint


def test_fetch_without_a_network_is_reported_and_leaves_no_partial_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        pytest.skip("no Debian here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(packages.MIRROR_VARIABLE, f"file://{tmp_path}/nowhere")
    with pytest.raises(CalabashError, match="cannot be fetched") as told:
        packages.fetch()
    assert told.value.reason is Reason.UNREACHABLE
    assert packages.MIRROR_VARIABLE in told.value.hint
    assert not packages.fetched()
    assert [path.name for path in packages.cached().parent.iterdir()] == ["ovn.lock"]


def test_fetch_without_apt_names_the_versions_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(children, "SYSTEM_DIRECTORIES", ())
    with pytest.raises(CalabashError, match="apt-get is missing") as told:
        packages.fetch()
    assert told.value.reason is Reason.UNSUPPORTED
    assert "3.1.3" in told.value.hint


def test_cached_programs_run_by_the_loader_of_their_tree() -> None:
    if not packages.fetched():
        pytest.skip("OVN is not in the cache: tools/bootstrap --tests fetches it")
    found = programs.of_tree(packages.cached())
    assert found.ovs >= programs.OVS_MIN
    assert found.ovn >= programs.OVN_MIN
    done = subprocess.run(
        [*found.command("ovn-trace"), "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ovn-trace" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
@pytest.mark.parametrize("which", ["tree", "directory above"])
def test_tree_that_another_user_can_change_is_refused_for_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    proof = packages.cached() / packages.OVN.proof
    proof.parent.mkdir(parents=True)
    proof.touch()
    assert packages.fetched()
    os.chown(packages.cached() if which == "tree" else tmp_path, 4711, 4711)
    for ask in (packages.fetched, packages.fetch):
        with pytest.raises(CalabashError, match="another user") as refused:
            ask()
        assert refused.value.reason is Reason.NOT_PERMITTED
