"""Tests of a layer 7 load balancer, a pair of HAProxy in front of a VPC's ports, with real requests."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.certificates import server_context
from tests.net import needs
from tests.net.flows import Background, Calls
from tests.net.realized_lab import RealizedLab, ReconciledHost, eventually, lose_host, restart_host
from tests.net.web import Web

from calabash.adapters.links import namespaces
from calabash.controllers.appliances.replica_state import ready_condition
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.network import NetworkKind, Port, Subnet, Vpc
from calabash.model.network_services import Backend, CheckKind, HealthCheck, Layer, LoadBalancer

HOSTS = ("h1",)
VIP = "10.0.1.100"
SERVER_HELLO = b"\x16\x03\x03"
LB = LoadBalancer(
    name="red/site",
    vip=ip_address(VIP),
    vip_number=443,
    backends=(Backend(port="red/a/web1", number=8080), Backend(port="red/a/web2", number=8080)),
    check=HealthCheck(kind=CheckKind.HTTP, path="/healthz", interval_s=1.0, failures=3),
    layer=Layer.L7,
    certificate="site",
)


class Visit(http.client.HTTPSConnection):
    """Connection from inside a station that stays open for several requests."""

    def __init__(self, station: Station, context: ssl.SSLContext) -> None:
        super().__init__(VIP, 443, timeout=60, context=context)
        self._station, self._tls = station, context

    def connect(self) -> None:
        plain = self._station.socket(socket.AF_INET, socket.SOCK_STREAM)
        plain.settimeout(60)
        try:
            plain.connect((VIP, 443))
            self.sock = self._tls.wrap_socket(plain, server_hostname=VIP)
        except BaseException:
            plain.close()
            raise

    def asked(self, path: str = "/") -> str:
        self.request("GET", path)
        answer = self.getresponse()
        return f"{answer.status} {answer.read().decode()}"


class Crowd(Background):
    """Client that sends requests one after another on new connections while its context is entered."""

    def __init__(self, station: Station, context: ssl.SSLContext) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.answers = 0
        self._station, self._context = station, context

    def _run(self) -> None:
        while not self._stopped.is_set():
            said = visited(self._station, self._context)
            if said.startswith("200"):
                self.answers += 1
            else:
                self.failures.append(said)


def visited(station: Station, context: ssl.SSLContext) -> str:
    """Send a request on a new connection; return the answer, or the error as text."""
    with contextlib.closing(Visit(station, context)) as visit:
        try:
            return visit.asked()
        except (OSError, http.client.HTTPException) as error:
            return f"no: {error!r}"


@pytest.fixture(scope="module")
def realized(lab: Lab) -> Iterator[RealizedLab]:
    needs.need_appliances()
    with RealizedLab(lab) as made:
        made.put(
            Vpc(name="red", cidrs=(ip_network("10.0.0.0/16"), ip_network("fd00::/48"))),
            Subnet(name="red/a", cidrs=(ip_network("10.0.1.0/24"),)),
            *(Port(name=f"red/a/{name}") for name in ("web1", "web2", "client")),
        )
        made.put(LB)
        made.apply()
        yield made


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, bytes]:
    """Return a client's TLS context that trusts the balancer, and the balancer's certificate with its key."""
    directory = tmp_path_factory.mktemp("tls")
    _, certificate = server_context(directory, name=VIP)
    pair = Path(certificate).read_bytes() + (directory / "tls.key").read_bytes()
    return ssl.create_default_context(cafile=certificate), pair


@pytest.fixture(scope="module")
def webs(realized: RealizedLab) -> Iterator[dict[str, Web]]:
    made = {name: Web(realized.station("h1", f"red/a/{name}"), name) for name in ("web1", "web2")}
    yield made
    for web in made.values():
        web.close()


@pytest.fixture(scope="module")
def client(realized: RealizedLab) -> Station:
    return realized.station("h1", "red/a/client")


@pytest.fixture(scope="module")
def kept(
    realized: RealizedLab, trusted: tuple[ssl.SSLContext, bytes], webs: dict[str, Web]
) -> Iterator[dict[str, ReconciledHost]]:
    assert len(webs) == 2
    secrets = {"red/site": trusted[1], "blue/site": b"another tenant's"}
    made = {host: ReconciledHost(realized, host, secrets) for host in realized.lab.record.gateways}
    try:
        both = {"a.web1-8080": True, "a.web2-8080": True}
        eventually(lambda: states(made) == both, "both backends are well", told=lambda: seen_by(made))
        yield made
    finally:
        for one in made.values():
            one.close()


def seen_by(kept: dict[str, ReconciledHost]) -> str:
    return "; ".join(f"{host}: {one.states} {one.logs()}" for host, one in kept.items())


def active(kept: dict[str, ReconciledHost]) -> list[str]:
    return [host for host, one in kept.items() if any(state.active for state in one.states)]


def states(kept: dict[str, ReconciledHost]) -> dict[str, bool]:
    """Return the health of the backends as the active replica sees them."""
    found = [state.healthy for one in kept.values() for state in one.states if state.active]
    return dict(found[0]) if len(found) == 1 else {}


def sees(kept: dict[str, ReconciledHost], backends: set[str]) -> bool:
    return set(states(kept)) == backends


def test_tls_ends_at_the_pair_and_requests_go_to_both_backends(
    kept: dict[str, ReconciledHost], client: Station, trusted: tuple[ssl.SSLContext, bytes]
) -> None:
    eventually(lambda: visited(client, trusted[0]).startswith("200"), "it answers")
    assert {visited(client, trusted[0]) for _ in range(20)} == {"200 web1", "200 web2"}
    for one in kept.values():
        files = list((one.directory / "a").rglob("*.pem"))
        assert len(files) == 1
        assert files[0].stat().st_mode & 0o777 == 0o600
        assert files[0].parent.stat().st_mode & 0o777 == 0o700


def test_unhealthy_backend_gets_no_request_until_it_is_healthy(
    kept: dict[str, ReconciledHost], client: Station, trusted: tuple[ssl.SSLContext, bytes], webs: dict[str, Web]
) -> None:
    webs["web1"].healthy = False
    eventually(lambda: states(kept).get("a.web1-8080") is False, "the ill one is seen")
    assert {visited(client, trusted[0]) for _ in range(20)} == {"200 web2"}
    told = ready_condition([state for one in kept.values() for state in one.states], 0.0)
    assert (told.holds, told.reason, told.message) == (
        True,
        "backends_ill",
        "1 of 2 backends are healthy; unhealthy: a.web1-8080",
    )
    webs["web2"].healthy = False
    eventually(lambda: states(kept).get("a.web2-8080") is False, "both are ill")
    told = ready_condition([state for one in kept.values() for state in one.states], 0.0)
    assert (told.holds, told.reason) == (False, "no_backend")
    for web in webs.values():
        web.healthy = True
    eventually(lambda: all(states(kept).values()) and len(states(kept)) == 2, "both are well again")
    assert {visited(client, trusted[0]) for _ in range(20)} == {"200 web1", "200 web2"}


def test_change_drops_no_connection_and_refuses_none(
    realized: RealizedLab, kept: dict[str, ReconciledHost], client: Station, trusted: tuple[ssl.SSLContext, bytes]
) -> None:
    with contextlib.closing(Visit(client, trusted[0])) as long, Crowd(client, trusted[0]) as crowd:
        assert long.asked().startswith("200")
        for backends in (LB.backends[:1], LB.backends, LB.backends[1:], LB.backends):
            realized.put(replace(LB, backends=backends))
            wanted = {f"a.{backend.port.rpartition('/')[2]}-8080" for backend in backends}
            eventually(functools.partial(sees, kept, wanted), "the change is in force")
        assert long.asked().startswith("200")  # by the HAProxy of before
        enough = crowd.answers + 5
        eventually(lambda: crowd.answers >= enough, "requests are answered")
    assert crowd.failures == []


def test_address_moves_when_its_host_is_lost_and_not_back_when_it_returns(
    realized: RealizedLab,
    kept: dict[str, ReconciledHost],
    client: Station,
    trusted: tuple[ssl.SSLContext, bytes],
) -> None:
    lab = realized.lab
    (first,) = active(kept)
    with Calls(client, VIP, 443, question=hello(), answer=SERVER_HELLO) as calls:
        eventually(lambda: calls.answered_s(0) < float("inf"), "calls are answered")
        lost_s = time.monotonic()
        lose_host(lab, first, kept[first])
        eventually(lambda: calls.answered_s(lost_s + 0.2) < float("inf"), "the other replica answers")
        print(f"no call was answered for {calls.hole_s(lost_s):.3f} s")  # bench.net_gateways holds it to its goal
    restart_host(lab, first)
    kept[first].close()
    kept[first] = ReconciledHost(realized, first, {"red/site": trusted[1]})
    eventually(lambda: runs(kept[first]), "the returned replica runs")
    assert visited(client, trusted[0]).startswith("200")
    assert active(kept) == [host for host in kept if host != first]


def hello() -> bytes:
    """Return the first message of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaking = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=VIP)
    with contextlib.suppress(ssl.SSLWantReadError):
        speaking.do_handshake()
    return outgoing.read()


def runs(one: ReconciledHost) -> bool:
    return bool(one.states) and all(not state.failure and state.healthy for state in one.states)


def test_certificate_that_is_not_there_is_told_and_what_runs_goes_on(
    realized: RealizedLab, kept: dict[str, ReconciledHost], client: Station, trusted: tuple[ssl.SSLContext, bytes]
) -> None:
    realized.put(replace(LB, certificate="absent"))
    eventually(
        lambda: all(any("no certificate absent" in state.failure for state in one.states) for one in kept.values()),
        "each replica says what is missing",
    )
    assert visited(client, trusted[0]).startswith("200")
    realized.put(LB)
    eventually(lambda: all(runs(one) for one in kept.values()), "all is well again")


def test_address_of_ipv6_is_served_by_a_pair_in_its_subnet_and_to_others(
    realized: RealizedLab, kept: dict[str, ReconciledHost]
) -> None:
    address = "fd00:0:0:3::100"
    realized.put(
        *(Subnet(name=f"red/{label}", cidrs=(ip_network(f"fd00:0:0:{n}::/64"),)) for n, label in ((3, "c"), (4, "d"))),
        *(Port(name=name) for name in ("red/c/web", "red/c/client", "red/d/client")),
        LoadBalancer(
            name="red/six",
            vip=ip_address(address),
            vip_number=80,
            backends=(Backend(port="red/c/web", number=8080),),
            layer=Layer.L7,
        ),
    )
    realized.apply()
    with contextlib.closing(Web(realized.station("h1", "red/c/web"), "web", version=6)):
        for name in ("red/c/client", "red/d/client"):
            with Calls(realized.station("h1", name), address, 80) as calls:
                eventually(functools.partial(answers, calls), f"{name} is answered", told=lambda: seen_by(kept))
    realized.networks = realized.networks.remove(NetworkKind.LOAD_BALANCER, "red/six")


def answers(calls: Calls) -> bool:
    return calls.answered_s(0) < float("inf")


def test_balancer_that_is_deleted_leaves_nothing_on_its_hosts(
    realized: RealizedLab, kept: dict[str, ReconciledHost]
) -> None:
    assert all(namespaces.names(one.prefix) for one in kept.values())
    realized.networks = realized.networks.remove(NetworkKind.LOAD_BALANCER, LB.name)
    eventually(lambda: not any(namespaces.names(one.prefix) for one in kept.values()), "their namespaces are gone")
    eventually(lambda: not any(one.devices() for one in kept.values()), "no switch has a port of them")
