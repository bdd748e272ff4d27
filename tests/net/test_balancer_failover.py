"""Tests of a layer 4 balancer whose backend stops listening: new connections go to the other backends at once."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.daemons.world import until
from tests.net.backends import BACKENDS, NUMBER, VIP, Balanced, Calling, send_command
from tests.net.networked import Networked

from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.controllers.networks.doctor import controller_pid, examine

HOSTS, GATEWAYS = ("h1", "h2"), ()
_OVN_S = 10.0


@pytest.fixture(scope="module")
def balanced(lab: Lab) -> Iterator[Balanced]:
    made = Balanced(lab, check_s=_OVN_S)
    yield made
    made.close()


def ready(networked: Networked) -> tuple[bool | None, str]:
    """Return the condition of the balancer's backends, as the pool reports it."""
    shown: Any = networked.world.client.get("/v1/networks/objects/lb?name=red/web")
    found = next((c for c in shown["status"]["conditions"] if c["kind"] == "ready"), None)
    return (found["holds"], found["message"]) if found is not None else (None, "")


def connected(client: Station, wanted: str) -> socket.socket:
    """Return a connection to that backend by the balancer's address."""
    for _ in range(100):
        one = client.socket(socket.AF_INET, socket.SOCK_STREAM)
        one.settimeout(60)
        one.connect((VIP, NUMBER))
        if one.recv(100).decode() == wanted:
            return one
        one.close()
    raise AssertionError(f"no connection of a hundred went to {wanted}")


def echoes(one: socket.socket) -> bool:
    one.sendall(b"still there?")
    return one.recv(100) == b"still there?"


def test_backend_that_stops_listening_gets_no_new_connection_and_keeps_its_old_ones(balanced: Balanced) -> None:
    """OVN's checks of this balancer, two failures ten seconds apart, would notice after ten seconds at the earliest."""
    client, stopping = balanced.client, balanced.servers["red/a/web1"]
    until(balanced.both_answer, within_s=60, what="both backends answer")
    with connected(client, "red/a/web1") as old, connected(client, "red/a/web2") as other:
        with Calling(balanced.client) as calling:
            until(lambda: len(calling.outcomes) > 50, within_s=60)
            closed_s = time.monotonic()
            send_command(stopping, "close", "closed")
            until(lambda: calling.count_since(closed_s + _OVN_S / 2, "red/a/web2") > 50, within_s=60)
            failed = [begun_s for begun_s, outcome in calling.since(closed_s) if outcome not in BACKENDS]
            print(f"{len(failed)} connections refused, the last begun after {max(failed, default=0.0):.3f} s")
            assert max(failed, default=0.0) < _OVN_S / 2
            until(
                lambda: ready(balanced.networked)[1].endswith("unhealthy: a.web1-8100"),
                within_s=60,
                what="its condition",
            )
            assert echoes(old)
            assert echoes(other)
            send_command(stopping, "open", "open")
            opened_s = time.monotonic()
            until(
                lambda: calling.count_since(opened_s, "red/a/web1") > 0, within_s=60, what="it gets connections again"
            )
        assert echoes(old)


def test_controller_that_starts_again_and_doctor_know_a_closed_backend(balanced: Balanced) -> None:
    networked, stopping = balanced.networked, balanced.servers["red/a/web1"]
    home = networked.world.home
    until(balanced.both_answer, within_s=60, what="both backends answer")
    send_command(stopping, "close", "closed")
    until(lambda: "web1" in ready(balanced.networked)[1], within_s=60, what="the backend is closed")
    with Calling(balanced.client) as calling:
        until(lambda: calling.count_since(time.monotonic() - 1, "red/a/web2") > 20, within_s=60)
        before = controller_pid(home)
        killed_s = time.monotonic()
        os.kill(before, signal.SIGKILL)
        until(lambda: controller_pid(home) not in (0, before), within_s=60, what="another controller runs")
        networked.put("vpc", "green", cidrs=["10.7.0.0/16"])
        until(lambda: realized(networked, "green"), within_s=60, what="the new controller works")
        assert {outcome for _, outcome in calling.since(killed_s)} == {"red/a/web2"}
    (rows,) = [finding for finding in examine(home, networked.world.client) if finding.check == "rows"]
    assert rows.result == "ok", rows
    send_command(stopping, "open", "open")
    until(balanced.both_answer, within_s=60, what="both backends answer again")


def realized(networked: Networked, vpc: str) -> bool:
    shown: Any = networked.world.client.get(f"/v1/networks/objects/vpc?name={vpc}")
    return any(c["kind"] == "realized" and c["holds"] for c in shown["status"]["conditions"])
