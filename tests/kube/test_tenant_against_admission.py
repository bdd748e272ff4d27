"""Tests of hostile pods against admission, and of admission killed while pods are created, on a real API server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.needs import need

from calabash.adapters.kube import load_client
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.objects import names
from calabash.kubernetes.serving_certificates.keeper import MUTATING, VALIDATING

PORT, PROBES = 18443, 18081
PODS = "/api/v1/namespaces/team/pods"
CONNECTIONS = 512
SERVE = f"""
import sys, threading
from calabash.kubernetes.admission.run import AdmissionProgram
from calabash.transport.listening import listen
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.adapters.kube import load_client
program = AdmissionProgram(
    load_client(sys.argv[1]), AdmissionSettings(), listener=listen("127.0.0.1", {PORT}),
    probes=listen("127.0.0.1", {PROBES}), names=("127.0.0.1",), refresh_s=0.5)
program.start()
threading.Event().wait()
"""
FLOOD = f"""
import socket, ssl, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
def keep():
    lines = []
    while True:
        try:
            line = socket.create_connection(("127.0.0.1", {PORT}), timeout=20, source_address=("127.0.0.2", 0))
            lines.append(context.wrap_socket(line))
        except OSError:
            pass
        if len(lines) >= {CONNECTIONS} // 4:
            print("full", flush=True)
            threading.Event().wait(1)
            lines.pop(0).close()
threads = [threading.Thread(target=keep) for _ in range(4)]
[thread.start() for thread in threads]
"""
READY = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PROBES}/readyz', timeout=30).status)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    need()
    with Cluster() as started:
        for name in ("calabash-system", "team"):
            started.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        started.wait_for(lambda: started.api.exists("/api/v1/namespaces/team/serviceaccounts/default"), "its account")
        client = load_client(started.kubeconfig)
        settings, url = AdmissionSettings(), f"https://127.0.0.1:{PORT}"
        client.create(MUTATING, mutating(settings, url=url))
        client.create(VALIDATING, validating(settings, url=url))
        started.start_program("admission", [sys.executable, "-c", SERVE, str(started.kubeconfig)])
        started.wait_for(lambda: is_ready(started), "admission", every_s=0.5)
        yield started


def is_ready(cluster: Cluster) -> bool:
    return "200" in cluster.exec_inside(sys.executable, "-c", READY, check=False)


def asking(name: str) -> Json:
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"limits": {names.GPUS: "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def check_form(pod: Json) -> None:
    assert names.REQUEST in pod["metadata"]["annotations"]
    assert [gate["name"] for gate in pod["spec"]["schedulingGates"]] == [names.PLAN_GATE]


def test_connections_of_a_pod_keep_no_api_server_from_admission(cluster: Cluster) -> None:
    cluster.start_program("flood", [sys.executable, "-c", FLOOD])
    try:
        cluster.wait_for(lambda: cluster.log("flood").count("full") >= 4, "all connections of the flood")
        for number in range(10):
            check_form(cluster.api.create(PODS, asking(f"flooded{number}")))
        assert is_ready(cluster), "probes are answered"
    finally:
        cluster.kill("flood")


def test_admission_that_is_killed_loses_no_pod_and_lets_none_in_unchanged(cluster: Cluster) -> None:
    """The client retries a creation that failed, as a controller does."""
    going = threading.Event()

    def create(number: int) -> None:
        pod = asking(f"killed{number}")
        for _ in range(600):
            try:
                cluster.api.create(PODS, pod)
            except RefusedError as refused:
                if refused.status == 409:
                    return
                threading.Event().wait(0.1)
            else:
                going.set()
                return
        raise AssertionError(f"pod {number} was not created in a minute")

    with ThreadPoolExecutor(4) as several:
        creating = [several.submit(create, number) for number in range(60)]
        assert going.wait(60)
        for _ in range(3):
            cluster.restart("admission")
            cluster.wait_for(lambda: is_ready(cluster), "admission", every_s=0.2)
        for one in creating:
            one.result()
    pods = [pod for pod in cluster.api.get(PODS)["items"] if pod["metadata"]["name"].startswith("killed")]
    assert len(pods) == 60
    for pod in pods:
        check_form(pod)
