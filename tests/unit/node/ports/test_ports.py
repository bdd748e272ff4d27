"""Ports of tenant networks on a host: real namespaces and interfaces, and a switch in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import until
from tests.unit.node.port_world import PortHost, held, may

from calabash.adapters.links import interfaces, namespaces
from calabash.adapters.links.interfaces import LinkEnd
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest
from calabash.node.ports.host_ports import HostNetwork
from calabash.node.ports.port_interfaces import link_settings, resolver_text
from calabash.node.ports.protocol import NoPorts, require_free

needs_root = pytest.mark.skipif(not may(), reason="network namespaces need root")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PortHost]:
    made = PortHost(tmp_path, "h")
    yield made
    made.close()


# -- what is asked for ---------------------------------------------------------------------------------------------


def test_request_names_ports_by_path_at_most_eight_without_duplicates() -> None:
    assert GpuRequest(ports=("red/a/web1",)).ports == ("red/a/web1",)
    for ports in (("red/a",), ("red/a/web1", "red/a/web1"), tuple(f"red/a/p{i}" for i in range(9)), ("../../x",)):
        with pytest.raises(CalabashError) as refused:
            GpuRequest(ports=ports)
        assert refused.value.hint


def test_standing_allocation_with_ports_is_refused() -> None:
    with pytest.raises(CalabashError, match="needs a program"):
        GpuRequest(ports=("red/a/web1",), standing=True)


def test_pool_without_networks_refuses_ports() -> None:
    NoPorts().require(GpuRequest())
    with pytest.raises(CalabashError) as refused:
        NoPorts().require(GpuRequest(ports=("red/a/web1",)))
    assert refused.value.reason is Reason.UNSUPPORTED
    assert "net up" in refused.value.hint


def test_a_port_has_one_holder_at_a_time() -> None:
    first = held("one", "red/a/web1")
    require_free(("red/a/web2",), [first])
    with pytest.raises(CalabashError, match="held by one") as refused:
        require_free(("red/a/web2", "red/a/web1"), [first])
    assert refused.value.reason is Reason.CONFLICT


@needs_root
def test_missing_ports_and_ports_of_others_give_the_same_error(host: PortHost) -> None:
    host.agent.require(GpuRequest(ports=("red/a/web1",), tenant="red"))
    said = []
    for port in ("blue/a/web1", "red/a/none", "red/a/x-gate"):
        with pytest.raises(CalabashError) as refused:
            host.agent.require(GpuRequest(ports=(port,), tenant="red"))
        assert refused.value.reason is Reason.NOT_FOUND
        said.append(refused.value.message.replace(port, "PORT"))
    assert len(set(said)) == 1


def test_first_port_has_the_default_route_and_others_routes_to_their_vpc(tmp_path: Path) -> None:
    from tests.unit.node.port_world import KnownPorts

    facts = KnownPorts("red/a/web1").port_facts("red/a/web1")
    first, second = (link_settings(facts, first=which) for which in (True, False))
    assert first.routes == (("0.0.0.0/0", "10.7.0.1"),)
    assert second.routes == (("10.7.0.0/16", "10.7.0.1"),)
    assert first.addresses == ("10.7.0.10/24",)
    assert resolver_text([facts]) == "search a.red.internal\nnameserver 10.7.0.1\n"
    assert resolver_text([]) == ""


# -- made and removed ----------------------------------------------------------------------------------------------


@needs_root
def test_allocation_has_its_ports_in_a_namespace_until_it_ends(host: PortHost) -> None:
    record = held("one", "red/a/web1", "red/a/web2")
    host.agent.attach(record)
    place = host.agent.place(record)
    assert place is not None
    assert place.resolver_file is not None
    assert "nameserver 10.7.0.1" in place.resolver_file.read_text()
    for index in (0, 1):
        assert interfaces.present(LinkEnd(namespace=place.namespace, name=f"eth{index}"))
    assert sorted(iface for iface, _ in host.switch.ports.values()) == ["red/a/web1", "red/a/web2"]
    host.agent.attach(record)  # again
    assert len(host.switch.ports) == 2
    host.agent.leave(record)
    host.agent.round([])
    assert host.left() == []


@needs_root
def test_process_in_the_namespace_of_an_ended_allocation_has_no_network(host: PortHost) -> None:
    record = held("one", "red/a/web1")
    host.agent.attach(record)
    place = host.agent.place(record)
    assert place is not None
    descriptor = os.open(place.namespace, os.O_RDONLY)
    try:
        host.agent.leave(record)
        host.agent.round([])
        held_open = Path(f"/proc/self/fd/{descriptor}")
        names = namespaces.inside(held_open, lambda: Path("/proc/thread-self/net/dev").read_text())
        assert "eth0" not in names
        assert host.left() == []
    finally:
        os.close(descriptor)


@needs_root
def test_lacks_describes_what_does_not_work_until_it_works(host: PortHost) -> None:
    host.switch.answering = False
    record = held("one", "red/a/web1")
    host.agent.attach(record)
    assert host.agent.lacks(record) == "gateway 10.7.0.1 of port red/a/web1 does not answer"
    host.switch.answering = True
    host.switch.plug(next(iter(host.switch.ports)), iface_id="red/a/web1", owner="again")
    until(lambda: not host.agent.lacks(record), what="the gateway to answer")
    host.agent.leave(record)
    host.agent.round([])
    assert host.left() == []


@needs_root
def test_interfaces_are_removed_while_the_switch_does_not_answer_and_switch_ports_later(host: PortHost) -> None:
    record = held("one", "red/a/web1")
    host.agent.attach(record)
    host.switch.broken = True
    host.agent.leave(record)
    host.agent.round([])
    place = host.agent.place(record)
    assert place is not None
    assert not interfaces.present(LinkEnd(namespace=place.namespace, name="eth0"))
    host.switch.broken = False
    host.agent.round([])
    assert host.left() == []


@needs_root
def test_host_without_a_switch_keeps_no_parts_of_ended_allocations(host: PortHost) -> None:
    over, before = held("one", "red/a/web1"), held("before", "red/a/web2")
    host.agent.attach(over)
    host.agent.attach(before)
    host.agent.close()
    agent = HostNetwork(home=host.home, pool=host.pool, switch=lambda: None, source=host.port_source)
    agent.leave(over)
    agent.round([])
    assert namespaces.names(f"{host.pool}.") == []
    host.new_agent().round([])  # a switch that was only away: what was plugged in is told by it
    assert host.left() == []


@needs_root
def test_next_holder_of_a_port_does_not_wait_for_a_round(host: PortHost) -> None:
    host.agent.attach(held("one", "red/a/web1"))
    host.agent.leave(held("one", "red/a/web1"))
    host.agent.attach(held("two", "red/a/web1"))
    assert [owner for _, owner in host.switch.ports.values()] == [f"{host.pool}/two"]


# -- agents come and go --------------------------------------------------------------------------------------------


@needs_root
def test_next_agent_keeps_ports_of_held_allocations_and_removes_the_rest(host: PortHost) -> None:
    kept, over = held("kept", "red/a/web1"), held("over", "red/a/web2")
    host.agent.attach(kept)
    host.agent.attach(over)
    host.agent.close()
    place = host.agent.place(kept)
    assert place is not None
    inode, ports = place.namespace.stat().st_ino, dict(host.switch.ports)
    agent = host.new_agent()
    agent.round([kept])
    assert place.namespace.stat().st_ino == inode
    assert host.switch.ports == {i: p for i, p in ports.items() if p[0] == "red/a/web1"}
    agent.leave(kept)
    agent.round([])
    assert host.left() == []


@needs_root
def test_ports_are_plugged_into_a_new_switch_again(host: PortHost) -> None:
    record = held("one", "red/a/web1")
    host.agent.attach(record)
    ports = dict(host.switch.ports)
    host.switch.ports.clear()
    host.agent.round([record])
    assert host.switch.ports == ports


@needs_root
def test_ports_of_another_pool_are_not_changed(host: PortHost, tmp_path: Path) -> None:
    record = held("one", "red/a/web1")
    host.agent.attach(record)
    other = PortHost(tmp_path / "other", "o")
    try:
        other.home.mkdir()
        other.switch.ports = host.switch.ports
        other.agent.round([])
        assert [owner for _, owner in host.switch.ports.values()] == [f"{host.pool}/one"]
        assert namespaces.names(f"{host.pool}.") == [f"{host.pool}.one"]
    finally:
        other.close()


class _KilledError(BaseException):
    """The agent is killed at this point."""


class Killer:
    """Kills the agent at the n-th call that changes the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: PortHost) -> None:
        self.calls, self.at = 0, -1
        for module, names in (
            (interfaces, ("join", "set_up", "remove")),
            (namespaces, ("create", "remove")),
            (shutil, ("rmtree",)),
            (host.switch, ("plug", "unplug")),
        ):
            for name in names:
                for after in (False, True):
                    before: Callable[..., Any] = getattr(module, name)
                    monkeypatch.setattr(module, name, partial(self._call, before, after))

    def _call(self, work: Callable[..., Any], after: bool, *words: Any, **named: Any) -> Any:
        if not after:
            self._count()
            return work(*words, **named)
        answer = work(*words, **named)
        self._count()
        return answer

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.at = -1
            raise _KilledError


@needs_root
@pytest.mark.parametrize("still_held", [False, True], ids=["over", "held"])
def test_agent_killed_at_any_step_leaves_no_parts_and_held_ports_work(
    host: PortHost, monkeypatch: pytest.MonkeyPatch, still_held: bool
) -> None:
    record = held("one", "red/a/web1")
    killer = Killer(monkeypatch, host)
    at = killed = 0
    while True:
        at += 1
        killer.calls, killer.at = 0, at
        agent = host.new_agent()
        try:
            agent.attach(record)
            agent.leave(record)
            agent.round([])
            break
        except _KilledError:
            killed += 1
        again = host.new_agent()
        if still_held:
            again.round([record])
            again.attach(record)
            assert [p for p, _ in host.switch.ports.values()] == ["red/a/web1"]
            again.leave(record)
        again.round([])
        assert host.left() == [], f"killed at call {at}"
    assert killed >= 12
    until(lambda: host.left() == [], what="everything to be gone")
