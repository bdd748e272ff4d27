"""Test of a northbound database of three servers: writes continue after the leader was killed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.world import until
from tests.net.servers import ClusterServer
from tests.net.test_northbound import WITHIN_S, put, vpc_rows

from calabash.adapters.ovn.northbound import Northbound
from calabash.net.ovn.northbound.changes import diff


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[ClusterServer]]:
    """Start a cluster of three servers."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"tcp:127.0.0.1:{one.getsockname()[1]}" for one in held]
    servers: list[ClusterServer] = []
    try:
        for number, address in enumerate(addresses):
            held[number].close()
            joins = addresses[0] if number else ""
            server = ClusterServer(tmp_path / f"n{number}", address=address, joins=joins)
            servers.append(server)
            server.start()
            until(server.member)
        until(lambda: any(server.leads() for server in servers))
        yield servers
    finally:
        for one in held:
            one.close()
        for server in servers:
            server.kill()


def test_after_the_leader_is_killed_the_next_one_is_found_and_written_to(cluster: list[ClusterServer]) -> None:
    northbound = Northbound(",".join(server.remote for server in cluster))
    try:
        northbound.session.wait_ready(WITHIN_S)
        assert northbound.session.wait_lock(WITHIN_S)
        put(northbound, "red", vpc_rows("red"))
        leader = next(server for server in cluster if server.leads())
        leader.kill()
        until(lambda: not northbound.session.ready)
        northbound.session.wait_ready(WITHIN_S)
        assert northbound.session.wait_lock(WITHIN_S)  # which the new leader gives, as locks are the leader's own
        put(northbound, "blue", vpc_rows("blue"))
        assert diff(vpc_rows("red"), northbound.actual("red")) == ()
        assert northbound.owners() == {"red", "blue"}
        others = [server for server in cluster if server is not leader]
        until(lambda: any(server.leads() for server in others))
        leader.start()
        until(leader.member)
        put(northbound, "red", {})
        assert northbound.owners() == {"blue"}
    finally:
        northbound.close()


def test_leader_that_hands_over_loses_no_write(cluster: list[ClusterServer]) -> None:
    northbound = Northbound(",".join(server.remote for server in cluster))
    try:
        northbound.session.wait_ready(WITHIN_S)
        assert northbound.session.wait_lock(WITHIN_S)
        put(northbound, "red", vpc_rows("red"))
        leader = next(server for server in cluster if server.leads())
        leader.stop()  # as at an upgrade: it hands over first
        until(lambda: any(server.leads() for server in cluster if server is not leader))
        assert northbound.session.wait_lock(WITHIN_S)
        put(northbound, "blue", vpc_rows("blue"))
        assert northbound.owners() == {"red", "blue"}
    finally:
        northbound.close()
