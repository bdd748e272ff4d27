"""Tests of the test cluster's control plane: it answers, survives crashes of its components, and leaves nothing."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.fakes import remove_nodes
from tests.kube.hollow import HollowKubelets
from tests.kube.namespaces import Namespaces, processes_in
from tests.kube.needs import need
from tests.kube.warden import hierarchies

ROOT = Path(__file__).resolve().parents[2]


def pod(name: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["true"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def serve(listener: socket.socket, answer: Callable[[Json], Json]) -> http.server.ThreadingHTTPServer:
    """Start an HTTP server on a listening socket; ``answer`` returns the JSON reply to the JSON of a request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.dumps(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_kubeconfig_can_be_used_outside_and_inside_the_namespaces(control_plane: Cluster) -> None:
    said_outside = json.loads(control_plane.kubectl("version", "-o", "json"))
    kubectl = str(control_plane.programs / "kubectl")
    said_inside = control_plane.exec_inside(
        kubectl, f"--kubeconfig={control_plane.kubeconfig}", "get", "--raw", "/readyz"
    )
    assert said_outside["serverVersion"]["gitVersion"] == said_outside["clientVersion"]["gitVersion"]
    assert said_outside["serverVersion"]["minor"] == "36"
    assert said_inside == "ok"


def test_pod_is_bound_to_one_of_a_hundred_fake_nodes(control_plane: Cluster) -> None:
    names = control_plane.fake_nodes(
        100, {"example.com/gpu": "8"}, prefix="hundred", labels=lambda number: {"zone": f"z{number % 4}"}
    )
    assert len(names) == 100
    control_plane.api.create("/api/v1/namespaces/default/pods", pod("on-a-fake", nodeSelector={"zone": "z3"}))

    def bound() -> str:
        found = control_plane.api.get("/api/v1/namespaces/default/pods/on-a-fake")
        return str(found["spec"].get("nodeName", ""))

    assert int(control_plane.wait_for(bound, "the pod bound").removeprefix("hundred-")) % 4 == 3
    control_plane.kubectl("delete", "pod", "on-a-fake", "--force")
    remove_nodes(control_plane.api, names)


def test_pods_of_invented_nodes_run_and_go_when_deleted(control_plane: Cluster) -> None:
    api, path = control_plane.api, "/api/v1/namespaces/default/pods/hollow"
    names = control_plane.fake_nodes(1, prefix="hollow")
    with HollowKubelets(api, "hollow-"):
        body = pod("hollow", nodeName="hollow-0", terminationGracePeriodSeconds=30)
        api.create("/api/v1/namespaces/default/pods", body)
        control_plane.wait_for(lambda: api.get(path)["status"].get("phase") == "Running", "the pod running", 20)
        api.delete(path)
        control_plane.wait_for(lambda: not api.exists(path), "the pod gone", 20)
    remove_nodes(control_plane.api, names)


def test_second_scheduler_calls_an_extender_in_the_test_process(control_plane: Cluster) -> None:
    asked: list[Json] = []

    def answer(question: Json) -> Json:
        asked.append(question)
        return {"NodeNames": ["asked-1"]}

    names = control_plane.fake_nodes(3, prefix="asked")
    server = serve(control_plane.listen(7001), answer)
    extender = {"urlPrefix": "http://127.0.0.1:7001", "filterVerb": "filter", "nodeCacheCapable": True}
    control_plane.add_scheduler(
        "asking", {"profiles": [{"schedulerName": "asking"}], "extenders": [extender], "percentageOfNodesToScore": 100}
    )
    control_plane.api.create("/api/v1/namespaces/default/pods", pod("asking", schedulerName="asking"))
    try:
        control_plane.wait_for(
            lambda: (
                control_plane.api.get("/api/v1/namespaces/default/pods/asking")["spec"].get("nodeName") == "asked-1"
            ),
            "the pod where the extender put it",
        )
        assert asked[0]["Pod"]["metadata"]["name"] == "asking"
    finally:
        server.shutdown()
        server.server_close()
        control_plane.kill("asking")
        control_plane.kubectl("delete", "pod", "asking", "--force")
        remove_nodes(control_plane.api, names)


def test_api_server_calls_a_webhook_in_the_test_process(control_plane: Cluster) -> None:
    def answer(question: Json) -> Json:
        refused = {"uid": question["request"]["uid"], "allowed": False, "status": {"message": "not on a Sunday"}}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": refused}

    certificate, key = control_plane.secrets.certificate("webhook")
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(certificate, key)
    server = serve(trust.wrap_socket(control_plane.listen(7002), server_side=True), answer)
    bundle = base64.b64encode(certificate.read_bytes()).decode()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    webhook = {
        "name": "refuses.example.com",
        "clientConfig": {"url": "https://127.0.0.1:7002/validate", "caBundle": bundle},
        "rules": [rule],
        "objectSelector": {"matchLabels": {"ask": "yes"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    control_plane.api.create(path, {"metadata": {"name": "refuses"}, "webhooks": [webhook]})
    said: list[str] = []

    def refused() -> bool:  # the API server applies it after a moment
        body = {"metadata": {"generateName": "asked-", "labels": {"ask": "yes"}}}
        try:
            control_plane.api.create("/api/v1/namespaces/default/configmaps", body)
        except RefusedError as error:
            said.append(str(error))
        return bool(said)

    try:
        control_plane.wait_for(refused, "the webhook's no", 60)
        assert said[0].endswith("not on a Sunday")
    finally:
        control_plane.api.delete(f"{path}/refuses")
        server.shutdown()
        server.server_close()


def test_objects_survive_the_deaths_of_api_server_and_etcd(own_control_plane: Cluster) -> None:
    cluster = own_control_plane
    cluster.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    assert cluster.kill("apiserver") == -signal.SIGKILL
    with pytest.raises((OSError, http.client.HTTPException)):
        cluster.api.get("/readyz")
    cluster.start("apiserver")
    assert cluster.api.get("/api/v1/namespaces/default/configmaps/kept")["data"] == {"a": "b"}
    cluster.restart("etcd")
    assert cluster.api.get("/api/v1/namespaces/default/configmaps/kept")["data"] == {"a": "b"}
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "after"}})
    cluster.wait_for(lambda: cluster.api.exists("/api/v1/namespaces/after/serviceaccounts/default"), "controllers back")


def test_stopped_api_server_answers_after_it_continues(own_control_plane: Cluster) -> None:
    cluster = own_control_plane
    cluster.namespaces.signal("apiserver", signal.SIGSTOP)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(cluster.api.text("/readyz")))
    asking.start()
    asking.join(0.3)  # a stopped API server cannot answer: a slow machine lengthens nothing but this wait
    assert not answers
    cluster.namespaces.signal("apiserver", signal.SIGCONT)
    asking.join(60)
    assert answers == ["ok"]


def test_two_clusters_side_by_side_know_nothing_of_each_other(
    control_plane: Cluster, own_control_plane: Cluster
) -> None:
    control_plane.api.create("/api/v1/namespaces", {"metadata": {"name": "only-here"}})
    assert control_plane.api.exists("/api/v1/namespaces/only-here")
    assert not own_control_plane.api.exists("/api/v1/namespaces/only-here")
    with pytest.raises(RefusedError, match="401"):
        type(own_control_plane.api)(
            own_control_plane.secrets.server, own_control_plane.secrets.authority, control_plane.secrets.token("admin")
        ).get("/api/v1/nodes")


def test_what_has_ended_ends_the_waiting_with_its_log() -> None:
    need()
    with pytest.raises(RuntimeError, match="unknown flag: --no-such-flag"):
        Cluster(apiserver=["--no-such-flag"])


KILLED = """
import os, signal
from tests.kube.namespaces import Namespaces
held = Namespaces()
held.start("long", ["sleep", "1000"])
(held.root / "here").touch()
print(held.root, held.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_test_process_that_was_killed() -> None:
    need()
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    root, pid = killed.stdout.split()
    nothing_left(Path(root), int(pid))


def test_what_a_killed_warden_left_is_swept_by_the_next() -> None:
    need()
    held = Namespaces()
    for tree in hierarchies():
        (tree / held.root.name / "below").mkdir(parents=True)
    held._warden.kill()
    held.close()
    assert held.root.exists()
    Namespaces().close()
    nothing_left(held.root, held.pid)


def test_nothing_is_left_of_a_cluster_that_was_closed() -> None:
    need()
    with Cluster() as cluster:
        pid = cluster.namespaces.pid
        network = os.readlink(f"/proc/{pid}/ns/net")
        assert processes_in(network, "net")
    nothing_left(cluster.root, pid)
    assert not processes_in(network, "net")


def nothing_left(root: Path, pid: int, patience_s: float = 60) -> None:
    """Check that process 1, the directory, the control groups and the mounts of a cluster disappear in time."""
    end = time.monotonic() + patience_s
    while left := [
        *(
            path
            for path in (root, Path(f"/proc/{pid}"), *(tree / root.name for tree in hierarchies()))
            if path.exists()
        ),
        *(line for line in Path("/proc/self/mounts").read_text().splitlines() if root.name in line),
    ]:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.02)
