"""Tests of the metrics API for autoscalers: values of pods and queues, refusals, and authentication."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from calabash.adapters.kube import Mirror
from calabash.adapters.kube.objects.core import CONFIG_MAP, NAMESPACE, POD
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE
from calabash.kubernetes.client_certificates import TrustedClients
from calabash.kubernetes.metrics.frontproxy import read_front_proxy
from calabash.kubernetes.metrics.run import API_SERVICE, REGISTERED, SERVICE, MetricsProgram
from calabash.kubernetes.metrics.series import USED_NODE, UsedNode, quantity, queue_in, summed, uses_of
from calabash.kubernetes.metrics.service import MetricsService
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1 import HttpQuestion
from calabash_testing.api_server.client import MemoryKube

ROOT = "/apis/external.metrics.k8s.io/v1beta1"
SYSTEM = "calabash-system"
WAIT_S = 60.0


def slice_(uid: str, percent: int, used: int | None, mib: int = 4096, used_mib: int | None = None) -> dict[str, Any]:
    told = {"podUid": uid, "corePercent": percent, "memoryMib": mib}
    told |= {} if used is None else {"coreUsedPercent": used}
    return told | ({} if used_mib is None else {"memoryUsedMib": used_mib})


def node(*slices: dict[str, Any]) -> UsedNode:
    body = {"metadata": {"name": "n"}, "status": {"devices": [{"memoryMib": 16384, "slices": list(slices)}]}}
    return msgspec.convert(body, UsedNode)


def test_use_is_of_what_was_given_and_summed_over_pods() -> None:
    uses = uses_of([node(slice_("a", 20, 20, used_mib=1024), slice_("a", 60, 20), slice_("b", 50, 75, 0, 4096))])
    assert uses["a"].of_compute() == 50.0
    assert uses["b"].of_compute() == 150.0, "idle time was lent to it"
    assert summed("calabash_slice_use_percent", uses.values()) == 200.0
    assert summed("calabash_slice_memory_percent", uses.values()) == 50.0, "a quarter of 4 GiB, and of the whole card"


def test_what_nobody_tells_is_not_zero() -> None:
    uses = uses_of([node(slice_("a", 20, None))])
    assert summed("calabash_slice_use_percent", uses.values()) is None
    assert summed("calabash_slice_use_percent", []) is None


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (200.0, "200"), (1.5, "1500m"), (33.3333, "33333m")])
def test_amounts_are_written_as_kubernetes_does(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    "selector", ["", "queue", "queue!=a", "queue in (a,b)", "queue=../x", "app=web", "queue=a,b=c"]
)
def test_a_selector_that_names_no_queue_is_refused(selector: str) -> None:
    with pytest.raises(CalabashError) as refused:
        queue_in(selector)
    assert refused.value.reason is Reason.BAD_REQUEST
    assert queue_in("queue=batch") == queue_in("queue==batch") == "batch"


class World:
    """A namespace with a pod that uses half of its slice, and a queue."""

    def __init__(self) -> None:
        self.client = MemoryKube()
        for name in ("team", SYSTEM, "kube-system"):
            self.client.create(NAMESPACE, {"metadata": {"name": name}})
        body = {"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": {"nodeName": "n"}}
        self.uid = self.client.create(POD, body, "team").metadata.uid
        self.client.create(GPU_NODE, {"metadata": {"name": "n"}})
        self.report_usage(10)
        self.client.create(QUEUE, {"metadata": {"name": "batch"}, "spec": {}})
        told = {"waiting": 3, "borrowed": 1.5}
        self.client.patch(QUEUE, "batch", body={"status": told}, subresource="status")

    def report_usage(self, used: int) -> None:
        more = {"pod": "team/p", "container": "c", "mode": "vgpu", "policy": "fixed", "allocation": "a"}
        card = {"uuid": "G", "index": 0, "model": "T4", "memoryMib": 16384, "health": "healthy"}
        devices = [{**card, "slices": [{**slice_(self.uid, 20, used), **more}]}]
        self.client.patch(GPU_NODE, "n", body={"status": {"devices": devices}}, subresource="status")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def service(world: World) -> Iterator[MetricsService]:
    mirror: Mirror[UsedNode] = Mirror(world.client, USED_NODE, on_change=lambda _: made.changed())
    made = MetricsService(world.client, mirror)
    mirror.start()
    assert mirror.synced(WAIT_S)
    yield made
    mirror.stop()


def ask(service: MetricsService, path: str, query: str = "", method: str = "GET") -> tuple[int, dict[str, Any]]:
    reply = asyncio.run(service.handle(HttpQuestion(method=method, path=path, query=query)))
    return int(reply.status), json.loads(reply.body) if reply.body else {}


def test_pods_are_selected_by_labels_within_the_namespace(world: World, service: MetricsService) -> None:
    path = f"{ROOT}/namespaces/team/calabash_slice_use_percent"
    status, body = ask(service, path, "labelSelector=app%3Dweb")
    assert (status, body["kind"]) == (200, "ExternalMetricValueList")
    assert [(item["metricName"], item["value"]) for item in body["items"]] == [("calabash_slice_use_percent", "50")]
    assert ask(service, path, "labelSelector=app%3Dother")[1]["items"] == []
    assert ask(service, path.replace("team", SYSTEM), "labelSelector=app%3Dweb")[1]["items"] == []
    world.report_usage(18)
    until(lambda: ask(service, path, "labelSelector=app%3Dweb")[1]["items"][0]["value"] == "90")


def test_queues_are_told_of_as_the_planner_does(service: MetricsService) -> None:
    def value(name: str) -> str:
        return str(
            ask(service, f"{ROOT}/namespaces/team/{name}", "labelSelector=queue%3Dbatch")[1]["items"][0]["value"]
        )

    assert value("calabash_queue_waiting_pods") == "3"
    assert value("calabash_queue_borrowed_devices") == "1500m"


@pytest.mark.parametrize(
    ("path", "query", "code", "said"),
    [
        ("/namespaces/team/colour", "", 404, "there is no metric 'colour'"),
        ("/namespaces/team/calabash_queue_waiting_pods", "", 400, "selects no queue"),
        ("/namespaces/team/calabash_queue_waiting_pods", "labelSelector=queue%3Dnone", 404, "there is no queue none"),
        ("/namespaces/team", "", 404, "not served here"),
        ("/nodes/x/y", "", 404, "not served here"),
        ("/namespaces/team/a/b", "", 404, "not served here"),
    ],
)
def test_what_is_not_there_is_refused_in_the_words_of_kubernetes(
    service: MetricsService, path: str, query: str, code: int, said: str
) -> None:
    status, body = ask(service, ROOT + path, query)
    assert (status, body["kind"], body["code"]) == (code, "Status", code)
    assert said in body["message"]
    assert ask(service, ROOT, method="POST")[0] == 405


def test_an_api_server_that_is_away_is_no_value(world: World, service: MetricsService) -> None:
    world.client.faults.down = True
    assert ask(service, f"{ROOT}/namespaces/team/calabash_slice_use_percent")[0] == 503


def test_every_metric_is_announced(service: MetricsService) -> None:
    status, body = ask(service, ROOT)
    assert status == 200
    names = [resource["name"] for resource in body["resources"]]
    assert "calabash_slice_use_percent" in names
    assert "calabash_queue_waiting_pods" in names


# ---- who is let in --------------------------------------------------------------------------------------------------


def until(check: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def certificate(directory: Path, name: str) -> tuple[str, Path]:
    """Return a self-signed certificate as PEM, and a file with it and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / f"{name}.pem"
    path.write_bytes(pem + private)
    return pem.decode(), path


def authorities(world: World, *pems: str, names: str = '["front-proxy-client"]') -> None:
    data = {"requestheader-client-ca-file": "".join(pems), "requestheader-allowed-names": names}
    name = "extension-apiserver-authentication"
    if world.client.get(CONFIG_MAP, name, "kube-system") is None:
        world.client.create(CONFIG_MAP, {"metadata": {"name": name}, "data": data}, "kube-system")
    else:
        world.client.patch(CONFIG_MAP, name, "kube-system", body={"data": data})


@pytest.fixture
def program(world: World) -> Iterator[MetricsProgram]:
    target = {"namespace": SYSTEM, "name": SERVICE}
    world.client.create(API_SERVICE, {"metadata": {"name": REGISTERED}, "spec": {"service": target}})
    made = MetricsProgram(world.client, namespace=SYSTEM, host="127.0.0.1", port=0, refresh_s=0.05)
    made.start()
    yield made
    made.stop()


def asked_by(world: World, program: MetricsProgram, client: Path | None) -> bytes:
    """Return the answer to a client with this certificate; b"" if the server closes the connection."""
    found = world.client.get(API_SERVICE, REGISTERED)
    assert found is not None
    context = ssl.create_default_context(cadata=base64.b64decode(found.spec.ca_bundle).decode())
    if client is not None:
        context.load_cert_chain(client)
    try:
        with (
            socket.create_connection(("127.0.0.1", program.port), 10) as plain,
            context.wrap_socket(plain, server_hostname=f"{SERVICE}.{SYSTEM}.svc") as line,
        ):
            line.sendall(f"GET {ROOT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            said = b""
            while more := line.recv(65536):
                said += more
            return said
    except OSError:
        return b""


def test_api_servers_are_answered_and_nobody_else(world: World, program: MetricsProgram, tmp_path: Path) -> None:
    proxy, proxy_file = certificate(tmp_path, "front-proxy-client")
    other, other_file = certificate(tmp_path, "kubelet")
    _, unknown_file = certificate(tmp_path, "stranger")
    authorities(world, proxy, other)
    until(program.ready)
    assert asked_by(world, program, proxy_file).startswith(b"HTTP/1.1 200")
    assert asked_by(world, program, other_file) == b"", "of that authority, with another name"
    assert asked_by(world, program, unknown_file) == b""
    assert asked_by(world, program, None) == b""
    assert not program.ended.is_set()
    authorities(world, other)
    assert program.ended.wait(WAIT_S), "another authority: it is started anew"


def test_a_group_that_another_adapter_serves_is_left_alone(world: World, tmp_path: Path) -> None:
    target = {"namespace": "monitoring", "name": "adapter"}
    world.client.create(
        API_SERVICE, {"metadata": {"name": REGISTERED}, "spec": {"service": target, "caBundle": "eA=="}}
    )
    authorities(world, certificate(tmp_path, "front-proxy-client")[0])
    program = MetricsProgram(world.client, namespace=SYSTEM, host="127.0.0.1", port=0)
    program.refresh()
    found = world.client.get(API_SERVICE, REGISTERED)
    assert found is not None
    assert found.spec.ca_bundle == "eA=="
    program._server.stop()


def test_without_an_authority_it_says_which_flags_are_missing(world: World) -> None:
    with pytest.raises(CalabashError) as refused:
        read_front_proxy(world.client)
    assert "--requestheader-client-ca-file" in refused.value.hint
    authorities(world, "x", names="front")
    with pytest.raises(CalabashError):
        read_front_proxy(world.client)


def test_any_name_will_do_where_api_servers_name_none() -> None:
    subject = ((("commonName", "anything"),),)
    assert TrustedClients("", ()).admits({"subject": subject})
    assert not TrustedClients("", ()).admits(None)
    assert not TrustedClients("", ("front-proxy-client",)).admits({"subject": subject})
    assert not TrustedClients("", ("front-proxy-client",)).admits({})
