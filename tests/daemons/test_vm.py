"""``calabash device vm`` on a real pool: attach cards to virtual machines, keep them across restarts, and return them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until

from calabash.adapters.host.pci.devices import PciTree

ADDRESS = re.compile(r"domain='0x([0-9a-f]{4})' bus='0x([0-9a-f]{2})' slot='0x([0-9a-f]{2})' function='0x([0-7])'")
_VIRSH = """#!/bin/sh
[ "$2" = "$(cat {refuses} 2>/dev/null)" ] && echo 'error: Requested operation is not valid' >&2 && exit 1
echo "$@" >> {log}; cat "$7" >> {log}
"""


@pytest.fixture
def pool(make_world: Callable[..., World]) -> World:
    world = make_world()
    world.up()
    return world


@pytest.fixture
def terminal(pool: World, tmp_path: Path) -> Terminal:
    """Return a terminal with a virsh that records its arguments."""
    programs = tmp_path / "programs"
    programs.mkdir()
    virsh = programs / "virsh"
    virsh.write_text(_VIRSH.format(log=tmp_path / "virsh.log", refuses=tmp_path / "refuses"))
    virsh.chmod(0o755)
    return Terminal(pool.home, tmp_path, CALABASH_PROGRAM_PATH=str(programs))


def _tree(pool: World) -> PciTree:
    return PciTree(pool.state_file.parent / "root")


def _drivers(pool: World) -> list[str]:
    tree = _tree(pool)
    return [tree.get(address).driver for address in tree.addresses() if not tree.get(address).physical]


def test_a_card_goes_to_a_machine_of_libvirt_stays_through_a_killed_pool_and_comes_back(
    pool: World, terminal: Terminal, tmp_path: Path
) -> None:
    made = json.loads(
        terminal("device", "vm", "attach", "--device", "0", "--machine", "libvirt:web1", "-o", "json").stdout
    )
    assert (made["kind"], made["domain"], len(made["devices"])) == ("Attachment", "web1", 1)
    log = (tmp_path / "virsh.log").read_text()
    assert "attach-device --current --domain web1" in log
    assert "managed='no'" in log
    assert _drivers(pool) == ["vfio-pci", "nvidia"]
    (row,) = terminal.items("device", "vm", "list")
    assert (row["mode"], row["state"], row["command"]) == ("passthrough", "running", ["vm", "libvirt:web1"])
    refused = terminal.refused(5, "run", "--memory", "39GiB", "--gpus", "2", "--", "true")
    assert "error" in refused

    pool.kill()
    pool.up()
    assert [r["id"] for r in terminal.items("device", "vm", "list")] == [row["id"]]
    assert _drivers(pool) == ["vfio-pci", "nvidia"]
    assert [d["health"] for d in pool.devices()] == ["healthy", "healthy"]

    assert terminal("device", "vm", "detach", "web1").stdout.split() == [row["id"]]
    assert "detach-device --current --domain web1" in (tmp_path / "virsh.log").read_text()
    assert _drivers(pool) == ["nvidia", "nvidia"]
    assert terminal.items("device", "vm", "list") == []
    until(lambda: {d["health"] for d in pool.devices()} == {"healthy"}, what="the card to pass its test")
    terminal("run", "--gpus", "2", "--", "true")


def test_the_xml_names_the_very_function_that_was_bound(pool: World, terminal: Terminal) -> None:
    done = terminal("device", "vm", "attach", "--device", "1", "--vf", "vf", "--xml")
    found = ADDRESS.search(done.stdout)
    assert found is not None
    address = f"{found[1]}:{found[2]}:{found[3]}.{found[4]}"
    assert _tree(pool).get(address).driver == "vfio-pci"
    assert _tree(pool).get(address).physical in _tree(pool).addresses()
    (row,) = terminal.items("device", "vm", "list")
    assert [(s["device_index"], s["profile"]) for s in row["slices"]] == [(1, "vf")]
    assert "calabash device vm detach" in done.stderr
    terminal("device", "vm", "detach", row["id"])
    until(lambda: _tree(pool).find(address) is None, what="the function to be unmade")


def test_what_a_machine_refuses_is_given_back_at_once(pool: World, terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "refuses").write_text("attach-device")
    said = terminal.refused(1, "device", "vm", "attach", "--device", "0", "--machine", "libvirt:web1")
    assert "virsh attach-device of web1: error: Requested operation is not valid" in said
    until(lambda: _drivers(pool) == ["nvidia", "nvidia"], what="the card to be back")
    assert terminal.items("device", "vm", "list") == []


def test_a_card_in_use_and_requests_that_make_no_sense_are_refused_with_a_hint(pool: World, terminal: Terminal) -> None:
    job = terminal.start_holder("--memory", "1GiB", "--cores", "10", "--model", "A100")
    taken = next(d["index"] for d in pool.devices() if d["allocations"])
    said = terminal.refused(5, "device", "vm", "attach", "--device", str(taken), "--xml")
    assert "mode" in said
    job.finish()
    for code, words in (
        (2, ("attach", "--device", "0")),
        (2, ("attach", "--device", "0", "--xml", "--machine", "libvirt:x")),
        (2, ("attach", "--device", "0", "--machine", "web1")),
        (2, ("attach", "--device", "0", "--machine", "libvirt:-x")),
        (3, ("attach", "--device", "9", "--xml")),
        (5, ("attach", "--device", "0", "--vf", "A100-10C", "--xml")),
        (3, ("detach", "web1")),
    ):
        assert "hint: " in terminal.refused(code, "device", "vm", *words)
    assert "exclude each other" in terminal.refused(
        2, "device", "vm", "attach", "--device", "0", "--xml", "--machine", "libvirt:x"
    )


def test_only_modes_for_virtual_machines_take_requests_that_stand(pool: World) -> None:
    from calabash.model.errors import CalabashError

    with pytest.raises(CalabashError) as caught:
        pool.client.post("/v1/allocations", {"standing": True, "command": ["x"]})
    assert "cannot be standing" in caught.value.message


def test_a_program_may_have_a_card_without_its_driver_as_long_as_it_runs(pool: World, terminal: Terminal) -> None:
    done = terminal("run", "--mode", "passthrough", "--", "sh", "-c", 'echo "$CALABASH_PCI"; echo "${LD_PRELOAD-none}"')
    address, preload = done.stdout.split()
    assert (address in _tree(pool).addresses(), preload) == (True, "none")
    until(lambda: _drivers(pool) == ["nvidia", "nvidia"], what="the card to be back")
