"""Tests of admission on a real API server: requests in all dialects, denials, and an unreachable webhook."""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.needs import need

from calabash.adapters.kube import HttpKubeClient, load_client
from calabash.kubernetes.admission.run import AdmissionProgram
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.quantity import parse_quantity
from calabash.kubernetes.pod_request import read_request
from calabash.kubernetes.serving_certificates.keeper import MUTATING, VALIDATING, CertificateKeeper
from calabash.transport.listening import listen

EXAMPLES = Path(__file__).parents[2] / "examples" / "kube"
PORT = 18443
UNANSWERED_PORT = 18444
SETTINGS = AdmissionSettings()
PODS = "/api/v1/namespaces/{}/pods"
HOOKS = "/apis/admissionregistration.k8s.io/v1"


def namespace(cluster: Cluster, name: str, **labels: str) -> str:
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    cluster.wait_for(lambda: cluster.api.exists(account), "the service account of a new namespace")
    return name


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    need()
    with Cluster() as started:
        namespace(started, SETTINGS.namespace)
        yield started


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> HttpKubeClient:
    return load_client(cluster.kubeconfig)


@pytest.fixture(scope="module")
def program(cluster: Cluster, client: HttpKubeClient) -> Iterator[AdmissionProgram]:
    url = f"https://127.0.0.1:{PORT}"
    client.create(MUTATING, mutating(SETTINGS, url=url))
    client.create(VALIDATING, validating(SETTINGS, url=url))
    running = AdmissionProgram(client, SETTINGS, listener=cluster.listen(PORT), names=("127.0.0.1",), refresh_s=0.5)
    running.start()
    try:
        cluster.wait_for(running.ready, "the admission server")
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def team(cluster: Cluster, program: AdmissionProgram) -> str:
    return namespace(cluster, "team")


def asking(name: str, limits: dict[str, str] | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"limits": limits or {names.GPUS: "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def create(cluster: Cluster, where: str, pod: Json) -> Json:
    return cluster.api.create(PODS.format(where), pod)


SERVED = sorted(path.stem for path in (EXAMPLES / "dialects").glob("*.yaml"))


@pytest.mark.parametrize("name", SERVED)
def test_pod_in_any_dialect_is_stored_in_the_canonical_form(cluster: Cluster, team: str, name: str) -> None:
    cluster.kubectl("apply", "-n", team, "-f", str(EXAMPLES / "dialects" / f"{name}.yaml"))
    pod = cluster.api.get(f"{PODS.format(team)}/{name}")
    asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
    (container,), (part,) = pod["spec"]["containers"], asked.containers
    limits = {n: parse_quantity(w, what=n) for n, w in container["resources"]["limits"].items()}
    assert limits == {n: parse_quantity(w, what=n) for n, w in container["resources"]["requests"].items()}
    assert set(limits) <= {names.GPUS, names.MEMORY, names.CORES}
    assert limits[names.GPUS] == part.request.count
    if part.request.memory_mib is not None:
        assert 0 <= part.request.memory_mib - limits[names.MEMORY] / (1 << 20) < 1
    assert (part.request.tenant, asked.dialect) == (team, name.partition("-")[0])
    assert pod["spec"]["schedulerName"] == "calabash"
    assert [gate["name"] for gate in pod["spec"]["schedulingGates"]] == [names.PLAN_GATE]
    assert names.DEVICE_TAINT in [toleration.get("key") for toleration in pod["spec"]["tolerations"]]
    assert pod["status"]["conditions"][0]["reason"] == "SchedulingGated"


def test_every_dialect_was_tried(team: str) -> None:
    assert {name.partition("-")[0] for name in SERVED} == {dialect.name for dialect in DIALECTS}


def test_denial_reaches_the_user_with_its_hint(cluster: Cluster, team: str) -> None:
    junk = yaml.safe_load((EXAMPLES / "dialects" / "nvidia-mig.yaml").read_text())
    junk["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-junk": 1}
    with pytest.raises(RefusedError, match=r"nvidia.com/mig-junk is not a MIG profile.*; hint: ") as refused:
        create(cluster, team, junk)
    assert refused.value.status == 422
    with pytest.raises(RefusedError, match=r"sets spec\.nodeName to n1"):
        create(cluster, team, asking("pinned", nodeName="n1"))


def test_claim_with_invalid_parameters_is_refused_when_it_is_created(cluster: Cluster, team: str) -> None:
    def claim(kind: str, policy: str) -> tuple[str, Json]:
        parameters = {"apiVersion": "calabash.dev/v1", "kind": "SliceConfig", "policy": policy}
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "vgpu.calabash.dev"}}]
        spec: Json = {
            "devices": {
                "requests": requests,
                "config": [{"opaque": {"driver": "calabash.dev", "parameters": parameters}}],
            }
        }
        spec = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": policy}, "spec": spec}
        return f"/apis/resource.k8s.io/v1/namespaces/{team}/{kind.lower()}s", body

    for kind in ("ResourceClaim", "ResourceClaimTemplate"):
        cluster.api.create(*claim(kind, "burst"))
        with pytest.raises(RefusedError, match=r"policy.*; hint: SliceConfig has policy") as refused:
            cluster.api.create(*claim(kind, "most"))
        assert refused.value.status == 422


@pytest.mark.parametrize("name", ["gang", "deployment"])
def test_pods_that_controllers_make_are_in_form(cluster: Cluster, team: str, name: str) -> None:
    cluster.kubectl("apply", "-n", team, "-f", str(EXAMPLES / f"{name}.yaml"))
    wanted = {"gang": 4, "deployment": 3}[name]
    label = {"gang": "job-name=gang", "deployment": "app=serve"}[name]

    def made() -> list[Json]:
        found: list[Json] = cluster.api.get(f"{PODS.format(team)}?labelSelector={label}")["items"]
        return found if len(found) == wanted else []

    for pod in cluster.wait_for(made, f"{wanted} pods of {name}"):
        asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
        assert asked.containers[0].request.gang_size == (4 if name == "gang" else 1)
        assert asked.movable is (name == "deployment")


def test_quota_on_native_names_limits_pods_in_other_dialects(cluster: Cluster, team: str) -> None:
    where = namespace(cluster, "bounded")
    hard = {f"requests.{names.GPUS}": "3", f"requests.{names.MEMORY}": "8Gi", f"requests.{names.CORES}": "100"}
    quota = f"/api/v1/namespaces/{where}/resourcequotas"
    cluster.api.create(quota, {"metadata": {"name": "devices"}, "spec": {"hard": hard}})
    cluster.wait_for(lambda: cluster.api.get(f"{quota}/devices").get("status", {}).get("hard"), "the quota")
    create(
        cluster, where, asking("one", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "50"})
    )
    with pytest.raises(RefusedError, match="exceeded quota: devices"):
        create(cluster, where, asking("two", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5000"}))
    with pytest.raises(RefusedError, match="exceeded quota: devices"):
        create(cluster, where, asking("three", {"nvidia.com/gpu": "1"}))
    with pytest.raises(RefusedError, match="exceeded quota: devices"):
        create(cluster, where, asking("four", {"volcano.sh/vgpu-number": "3", "volcano.sh/vgpu-memory": "10"}))
    used = cluster.wait_for(lambda: cluster.api.get(f"{quota}/devices")["status"].get("used"), "use of the quota")
    assert used[f"requests.{names.GPUS}"] == "1"


def test_example_of_a_queue_has_a_namespace_whose_pods_wait_in_it(cluster: Cluster, team: str) -> None:
    _, where, quota = yaml.safe_load_all((EXAMPLES / "queue.yaml").read_text())
    namespace(cluster, "research", **where["metadata"]["labels"])
    cluster.kubectl("apply", "--validate=strict", "-f", "-", text=yaml.safe_dump(quota))
    pod = asking("asks")
    pod["metadata"]["labels"] = {names.QUEUE: "research"}
    assert read_request(create(cluster, "research", pod)["metadata"]["annotations"][names.REQUEST]).queue == "research"
    with pytest.raises(
        RefusedError, match="queue research is not allowed in namespace team, whose pods may use: default"
    ):
        create(cluster, team, pod)
    with pytest.raises(RefusedError, match="exceeded quota: devices"):
        create(cluster, "research", asking("too-much", {names.GPUS: "10", names.MEMORY: "161Gi"}))


def forged(name: str) -> str:
    return json.dumps({"metadata": {"annotations": {name: "{}"}}})


@pytest.mark.parametrize("more", [(), ("--subresource=status",)])
def test_what_only_the_product_may_write_is_denied_to_everybody_else(
    cluster: Cluster, team: str, more: tuple[str, ...]
) -> None:
    name = f"guarded{len(more)}"
    create(cluster, team, asking(name))
    patch = ("patch", "pod", name, "-n", team, "--type=merge", *more)
    for word in (names.PLAN, names.REQUEST, names.DIALECT):
        assert f"annotation {word} must not be changed by" in refusal(cluster, *patch, "-p", forged(word))
    before = cluster.api.get(f"{PODS.format(team)}/{name}")["metadata"]["annotations"]
    assert names.PLAN not in before
    planner = ("--as", SETTINGS.trusted_users[0], "--as-group=system:masters")
    cluster.kubectl(*planner, *patch, "-p", forged(names.PLAN))
    assert names.PLAN in cluster.api.get(f"{PODS.format(team)}/{name}")["metadata"]["annotations"]


def refusal(cluster: Cluster, *words: str) -> str:
    with pytest.raises(RuntimeError, match="denied the request") as refused:
        cluster.kubectl(*words)
    return str(refused.value)


def test_only_the_planner_may_remove_the_scheduling_gate(cluster: Cluster, team: str) -> None:
    create(cluster, team, asking("gated"))
    patch = (
        "patch",
        "pod",
        "gated",
        "-n",
        team,
        "--type=json",
        "-p",
        '[{"op":"remove","path":"/spec/schedulingGates"}]',
    )
    assert "scheduling gate calabash.dev/plan must not be removed by" in refusal(cluster, *patch)
    cluster.kubectl("--as", SETTINGS.trusted_users[0], "--as-group=system:masters", *patch)
    assert "schedulingGates" not in cluster.api.get(f"{PODS.format(team)}/gated")["spec"]


def test_plan_of_a_new_pod_is_removed_and_in_an_exempt_namespace_refused(cluster: Cluster, team: str) -> None:
    pod = asking("forged")
    pod["metadata"]["annotations"] = {names.PLAN: "{}"}
    stored = create(cluster, team, pod)
    assert names.PLAN not in stored["metadata"]["annotations"]
    dark = namespace(cluster, "dark", **{names.ADMISSION: "off"})
    with pytest.raises(RefusedError, match="admission does not review in namespace dark"):
        create(cluster, dark, pod)
    del pod["metadata"]["annotations"]
    assert "schedulingGates" not in create(cluster, dark, pod)["spec"]


def test_exported_pod_can_be_created_again(cluster: Cluster, team: str) -> None:
    first = create(
        cluster, team, asking("exported", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "20"})
    )
    copy = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "imported"}, "spec": first["spec"]}
    copy["metadata"]["annotations"] = {**first["metadata"]["annotations"], names.PLAN: '{"id":"old"}'}
    second = create(cluster, team, copy)
    assert second["metadata"]["annotations"] == first["metadata"]["annotations"]
    assert second["spec"]["containers"][0]["resources"] == first["spec"]["containers"][0]["resources"]


def test_ephemeral_container_gets_no_devices(cluster: Cluster, team: str) -> None:
    create(cluster, team, asking("looked-at"))
    container = {"name": "debug", "image": "x", "resources": {"limits": {names.GPUS: "1"}}}
    body = {"spec": {"ephemeralContainers": [container]}}
    with pytest.raises(RefusedError, match=r"(?i)ephemeral container"):
        cluster.api.patch(f"{PODS.format(team)}/looked-at/ephemeralcontainers", body, "strategic")


def test_replaced_certificate_is_trusted_and_no_review_is_lost(
    cluster: Cluster, client: HttpKubeClient, program: AdmissionProgram, team: str
) -> None:
    secret = f"/api/v1/namespaces/{SETTINGS.namespace}/secrets/{SETTINGS.secret}"

    def served() -> str:
        return str(cluster.api.get(secret)["data"]["tls.crt"])

    before = served()
    settings = AdmissionSettings(serving_days=30)
    cluster.api.patch(secret, {"data": {"since": "MjAyMC0wMS0wMVQwMDowMDowMCswMDowMA=="}})
    other = AdmissionProgram(client, settings, listener=listen("127.0.0.1", 0), names=("127.0.0.1", "other"))
    other.refresh()
    assert served() != before
    for i in range(20):
        create(cluster, team, asking(f"while-{i}"))
        time.sleep(0.05)
    program.refresh()
    create(cluster, team, asking("after"))


def test_replicas_that_start_at_once_agree_on_one_authority(
    cluster: Cluster, client: HttpKubeClient, program: AdmissionProgram, team: str
) -> None:
    secret = f"/api/v1/namespaces/{SETTINGS.namespace}/secrets/{SETTINGS.secret}"
    cluster.api.delete(secret)
    keepers = [CertificateKeeper(client, SETTINGS.certificates, ("127.0.0.1",)) for _ in range(4)]
    with ThreadPoolExecutor(len(keepers)) as pool:
        now = datetime.datetime.now(datetime.UTC)
        found = list(pool.map(lambda keeper: keeper.refresh(now), keepers))
    assert len({(material.bundle, material.serving.certificate) for material in found}) == 1
    program.refresh()
    numbers = iter(range(1000))

    def works() -> bool:
        try:
            create(cluster, team, asking(f"agreed-{next(numbers)}"))
        except RefusedError:
            return False
        return True

    cluster.wait_for(works, "the new authority to be trusted")


def point_at(cluster: Cluster, url: str) -> None:
    for kind, make in (("mutating", mutating), ("validating", validating)):
        found = make(SETTINGS, url=url)["webhooks"]
        patch = [
            {"op": "replace", "path": f"/webhooks/{i}/clientConfig/url", "value": webhook["clientConfig"]["url"]}
            for i, webhook in enumerate(found)
        ]
        cluster.api.patch(f"{HOOKS}/{kind}webhookconfigurations/{SETTINGS.configuration}", patch, "json")


class Unanswered:
    """A listener that closes every connection without an answer, and counts the connections."""

    def __init__(self, listener: socket.socket) -> None:
        self.calls = 0
        self._listener = listener
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.calls += 1
            connection.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join()
        self._listener.close()


@pytest.fixture
def nobody_answers(cluster: Cluster, program: AdmissionProgram, team: str) -> Iterator[Unanswered]:
    unanswered = Unanswered(cluster.listen(UNANSWERED_PORT))
    point_at(cluster, f"https://127.0.0.1:{UNANSWERED_PORT}")
    tried = iter(range(10_000))

    def failing() -> bool:
        try:
            create(cluster, team, asking(f"try-{next(tried)}"))
        except RefusedError as error:
            return "failed calling webhook" in str(error)
        return False

    cluster.wait_for(failing, "the configuration to be in force")
    yield unanswered
    point_at(cluster, f"https://127.0.0.1:{PORT}")

    def working() -> bool:
        try:
            create(cluster, team, asking(f"try-{next(tried)}"))
        except RefusedError:
            return False
        return True

    cluster.wait_for(working, "the configuration to be in force again")
    unanswered.close()


def test_without_anybody_to_ask_only_pods_that_ask_for_devices_wait(
    cluster: Cluster, team: str, request: pytest.FixtureRequest
) -> None:
    lenient = namespace(cluster, "lenient", **{names.ADMISSION: "optional"})
    create(cluster, team, asking("earlier"))
    unanswered = request.getfixturevalue("nobody_answers")
    calls = unanswered.calls
    for i in range(10):
        create(cluster, team, asking(f"plain-{i}", {"cpu": "1"}))
    assert unanswered.calls == calls, "no webhook is called for a pod without devices"
    assert "schedulingGates" not in create(cluster, lenient, asking("lenient", {"nvidia.com/gpu": "1"}))["spec"]
    cluster.api.patch(f"{PODS.format(team)}/earlier", {"metadata": {"labels": {"a": "b"}}})
    planner = ("--as", SETTINGS.trusted_users[0], "--as-group=system:masters")
    cluster.kubectl(*planner, "patch", "pod", "earlier", "-n", team, "--type=merge", "-p", forged(names.PLAN))
    with pytest.raises(RefusedError, match="failed calling webhook"):
        cluster.api.patch(f"{PODS.format(team)}/earlier", json.loads(forged(names.DIALECT)))
