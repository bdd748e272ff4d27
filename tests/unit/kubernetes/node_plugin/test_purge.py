"""Tests of ``calabash uninstall node`` on temporary directories: what it removes, and when it removes nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from calabash.adapters.host.files import lock_exclusive
from calabash.adapters.host.mounts import mount, mounts, unmount
from calabash.adapters.kubelet import DevicePluginServer, DraServer
from calabash.cli.commands import cli
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.node_plugin.purge import Purged, purge
from calabash.model.errors import CalabashError, Reason

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's to make")


class Node:
    """The directories of a node, as an agent leaves them."""

    def __init__(self, root: Path) -> None:
        self.home, self.specs, self.kubelet = root / "home", root / "cdi", root / "kubelet"
        for path in (self.home / "alloc" / "one", self.home / "lib", self.home / "device-plugins", self.specs):
            path.mkdir(parents=True)
        (self.kubelet / "device-plugins").mkdir(parents=True)
        (self.home / "agent.db").write_text("journal")
        (self.home / "lib" / "libcalabash.so").write_text("library")
        (self.home / "lib" / "link").symlink_to(root / "outside")
        (root / "outside").write_text("another's")
        self.outside = root / "outside"
        for name in ("calabash-slot-slot-0001", "calabash-claim-1234", "nvidia"):
            (self.specs / f"{name}.json").write_text("{}")
        (self.kubelet / "device-plugins" / "kubelet_internal_checkpoint").write_text("{}")

    def purge(self, *, force: bool = False) -> Purged:
        return purge(self.home, specs=self.specs, kubelet=self.kubelet, force=force)

    def assert_untouched(self) -> None:
        assert (self.home / "agent.db").exists()
        assert len(list(self.specs.iterdir())) == 3


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    for entry in reversed(mounts()):
        if tmp_path in entry.directory.parents:
            unmount(entry.directory)


class Handler:
    """Stands for the parts that answer the kubelet; the kubelet of these tests asks nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary directory with a short path, because the path of a Unix socket is limited to 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="purge-") as made:
        yield Path(made)


def test_purge_removes_the_sockets_of_a_device_plug_in_and_of_a_driver_that_were_killed(short_path: Path) -> None:
    node = Node(short_path)
    directories = [node.kubelet / name for name in ("device-plugins", "plugins", "plugins_registry")]
    for directory in directories[1:]:
        directory.mkdir()
    kept = short_path / "kept"
    kept.mkdir()
    plugin = DevicePluginServer("calabash.dev/gpus", cast("Any", Handler()), directory=directories[0])
    driver = DraServer(DRIVER, cast("Any", Handler()), plugins=directories[1], registry=directories[2])
    for server in (plugin, driver):
        server.start()
    made = [path for directory in directories for path in directory.rglob("*.sock")]
    assert len(made) == 3, made
    for number, path in enumerate(made):  # a killed process leaves them; a stopped one removes its own
        path.rename(kept / str(number))
    for server in (plugin, driver):
        server.stop()
    for number, path in enumerate(made):
        path.parent.mkdir(exist_ok=True)
        (kept / str(number)).rename(path)
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(str(directories[2] / "other.example-reg.sock"))
        assert node.purge() == Purged(mounts=0, specs=2, sockets=3, home=True)
    assert not (directories[1] / DRIVER).exists()
    assert [path.name for path in directories[2].iterdir()] == ["other.example-reg.sock"]


def test_purge_removes_what_is_the_agents_and_nothing_else(node: Node) -> None:
    assert node.purge() == Purged(mounts=0, specs=2, sockets=0, home=True)
    assert not node.home.exists()
    assert [path.name for path in node.specs.iterdir()] == ["nvidia.json"]
    assert [path.name for path in (node.kubelet / "device-plugins").iterdir()] == ["kubelet_internal_checkpoint"]
    assert node.outside.read_text() == "another's"
    assert node.purge() == Purged(mounts=0, specs=0, sockets=0, home=False), "nothing is left to remove"


@pytest.mark.parametrize("lock", ["agent.lock", "device-plugins/relay.lock"])
def test_purge_is_refused_while_an_agent_or_its_relay_runs(node: Node, lock: str) -> None:
    held = lock_exclusive(node.home / lock)
    assert held is not None
    try:
        with pytest.raises(CalabashError, match="of this node is running and uses") as refused:
            node.purge(force=True)
    finally:
        os.close(held)
    assert (refused.value.reason, bool(refused.value.hint)) == (Reason.CONFLICT, True)
    node.assert_untouched()
    node.purge()


def test_purge_of_a_directory_that_is_not_an_agents_is_refused(node: Node, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "letters").write_text("mine")
    with pytest.raises(CalabashError, match="is not the directory of an agent"):
        purge(other, specs=node.specs, kubelet=node.kubelet, force=True)
    assert (other / "letters").read_text() == "mine"
    node.assert_untouched()


def test_purge_by_command_needs_absolute_paths_and_says_what_it_removed(node: Node) -> None:
    words = [f"--home={node.home}", f"--specs={node.specs}", f"--kubelet={node.kubelet}"]
    said = CliRunner().invoke(cli, ["uninstall", "node", *words])
    assert said.exit_code == 0, said.output
    assert said.output == f"removed: 0 mounts, 2 CDI specs, 0 sockets\n{node.home}: removed\n"
    relative = CliRunner().invoke(cli, ["uninstall", "node", "--home=home"])
    assert isinstance(relative.exception, CalabashError)
    assert "absolute" in relative.exception.hint


@root_only
def test_purge_unmounts_slots_and_keeps_a_home_that_is_a_mount(node: Node) -> None:
    (node.home / "agent.db").unlink()
    mount("calabash", node.home, "tmpfs", "size=1048576")
    for name in ("one", "two"):
        (node.home / "alloc" / name).mkdir(parents=True)
        mount("calabash", node.home / "alloc" / name, "tmpfs", "size=65536")
    assert node.purge() == Purged(mounts=2, specs=2, sockets=0, home=False)
    assert node.home.is_mount()
    assert list(node.home.iterdir()) == []


@root_only
def test_purge_is_refused_while_a_container_uses_a_slot_unless_by_force(node: Node, tmp_path: Path) -> None:
    slot, inside = node.home / "alloc" / "one", tmp_path / "inside"
    inside.mkdir()
    mount("calabash", slot, "tmpfs", "size=65536")
    script = f"mount --bind {slot} {inside}; umount {slot}; echo ready; exec sleep 1000"
    container = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert container.stdout is not None
        assert container.stdout.readline() == "ready\n"
        with pytest.raises(CalabashError, match=rf"1 processes of containers still use .*{container.pid}"):
            node.purge()
        node.assert_untouched()
        assert node.purge(force=True) == Purged(mounts=1, specs=2, sockets=0, home=True)
    finally:
        container.kill()
        container.communicate()
