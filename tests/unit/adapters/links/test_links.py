"""Network namespaces and veth pairs, created in the kernel that runs the tests."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.daemons.world import until

from calabash.adapters.links import namespaces, offloads
from calabash.adapters.links.interfaces import (
    LinkEnd,
    LinkSettings,
    join,
    neighbour_answers,
    present,
    remove,
    resolve_neighbour,
    set_up,
)


def _can_create_namespaces() -> bool:
    """Return True if this process can create a network namespace."""
    name = f"cblt{os.getpid()}"
    try:
        namespaces.create(name)
    except OSError:
        return False
    namespaces.remove(name)
    return True


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not _can_create_namespaces(), reason="network namespaces need root"
)
MAC = "0a:01:02:03:04:05"


@pytest.fixture
def two() -> Iterator[tuple[LinkEnd, LinkEnd]]:
    """Yield the two ends of a veth pair that the test creates; each has a namespace of its own."""
    made = [f"cblt{os.getpid()}{which}" for which in "ab"]
    for name in made:
        namespaces.create(name)
    inner, outer = (
        LinkEnd(namespace=namespaces.path_of(n), name=e) for n, e in zip(made, ("eth0", "vtest"), strict=True)
    )
    yield inner, outer
    for name in made:
        namespaces.remove(name)


def test_a_namespace_is_made_once_found_by_its_prefix_and_gone_when_removed() -> None:
    name = f"cblt{os.getpid()}n"
    namespaces.create(name)
    inode = namespaces.path_of(name).stat().st_ino
    namespaces.create(name)
    assert namespaces.path_of(name).stat().st_ino == inode
    assert namespaces.names(name) == [name]
    assert namespaces.exists(name)
    namespaces.remove(name)
    namespaces.remove(name)
    assert not namespaces.exists(name)
    assert namespaces.names(name) == []


def test_a_name_that_a_crash_left_without_a_namespace_is_none_and_is_made_whole() -> None:
    name = f"cblt{os.getpid()}h"
    namespaces.create(name)
    namespaces.remove(name)
    namespaces.path_of(name).touch()
    assert not namespaces.exists(name)
    namespaces.create(name)
    assert namespaces.exists(name)
    namespaces.remove(name)


def test_work_inside_a_namespace_leaves_every_other_thread_where_it_is(two: tuple[LinkEnd, LinkEnd]) -> None:
    before = os.stat("/proc/thread-self/ns/net").st_ino
    there = namespaces.inside(two[0].namespace, lambda: os.stat("/proc/thread-self/ns/net").st_ino)
    assert there == os.stat(str(two[0].namespace)).st_ino != before
    assert os.stat("/proc/thread-self/ns/net").st_ino == before
    assert not [thread for thread in threading.enumerate() if thread.name == "links"]
    with pytest.raises(OSError, match="cblt-nowhere"):
        namespaces.inside(namespaces.path_of("cblt-nowhere"), lambda: 0)


def test_a_pair_carries_packets_between_its_ends_with_the_settings_asked_for(two: tuple[LinkEnd, LinkEnd]) -> None:
    inner, outer = two
    assert inner.namespace is not None
    join(outer, inner)
    join(outer, inner)  # it is there
    settings = LinkSettings(
        mac=MAC,
        mtu_bytes=1350,
        addresses=("10.9.0.5/24", "fd09::5/64"),
        routes=(("0.0.0.0/0", "10.9.0.1"), ("::/0", "fd09::1")),
    )
    for _ in range(2):
        set_up(inner, settings)
    set_up(outer, LinkSettings(addresses=("10.9.0.1/24", "fd09::1/64")))
    for neighbour in ("10.9.0.1", "fd09::1"):
        resolve_neighbour(inner.namespace, neighbour)
        until(partial(neighbour_answers, inner.namespace, neighbour), what=f"{neighbour} to answer")

    def shown() -> tuple[str, str, bool]:
        link = Path("/proc/thread-self/net/route").read_text()
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("eth0", 0))
            mac = raw.getsockname()[4].hex(":")
        return link, mac, offloads.checksums_left_out("eth0")

    routes, mac, left_out = namespaces.inside(inner.namespace, shown)
    assert "eth0\t00000000\t0100090A" in routes
    assert mac == MAC
    assert not left_out
    resolve_neighbour(inner.namespace, "10.9.0.77")
    assert not neighbour_answers(inner.namespace, "10.9.0.77")


def test_one_end_removed_takes_the_other_with_it(two: tuple[LinkEnd, LinkEnd]) -> None:
    inner, outer = two
    join(outer, inner)
    assert present(inner)
    assert present(outer)
    remove(outer)
    remove(outer)
    until(lambda: not present(inner), what="the other end to go")


def test_what_netlink_refuses_is_an_error_with_its_number(two: tuple[LinkEnd, LinkEnd]) -> None:
    inner, outer = two
    join(outer, inner)
    with pytest.raises(OSError) as told:  # noqa: PT011 - its number is what is looked at
        set_up(inner, LinkSettings(routes=(("0.0.0.0/0", "192.0.2.1"),)))
    assert told.value.errno


def test_nothing_stays_open_in_this_process(two: tuple[LinkEnd, LinkEnd]) -> None:
    inner, outer = two
    join(outer, inner)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        set_up(inner, LinkSettings(addresses=("10.9.0.5/24",)))
        with suppress(OSError):
            set_up(inner, LinkSettings(routes=(("0.0.0.0/0", "192.0.2.1"),)))
    assert len(os.listdir("/proc/self/fd")) <= before
