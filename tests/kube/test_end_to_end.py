"""End-to-end tests of users' pods: each runs with what it requests, or gets the reason why not.

All components are real; only the cards are simulated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import MIB, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

from calabash.adapters.kube import load_client
from calabash.cli.kubectl.drain import Drain
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.objects.names import GPUS

FILL = "exec load fill 2"
HOLD = "sleep 1000"
TEAM = "team"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    with (
        Cluster(lifecycle=True, users=USERS) as cluster,
        Product(GpuNode(RealNode(cluster), tmp_path_factory.mktemp("product"), words=["--serve-nvidia-names"])) as made,
    ):
        made.namespace(TEAM)
        yield made


def native(memory: str, cores: int, gpus: int = 1) -> dict[str, str]:
    return {"calabash.dev/gpus": str(gpus), "calabash.dev/memory": memory, "calabash.dev/cores": str(cores)}


def filled_mib(product: Product, name: str) -> int:
    assert product.wait(TEAM, name, "Succeeded", "Failed") == "Succeeded", product.log(TEAM, name)
    return int(product.log(TEAM, name).split()[-1]) // MIB


@pytest.mark.parametrize(
    ("name", "limits", "memory_mib"),
    [
        ("native", native("1Gi", 30), 1024),
        ("hami", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1500", "nvidia.com/gpucores": "30"}, 1500),
        ("qgpu", {"tke.cloud.tencent.com/qgpu-memory": "2", "tke.cloud.tencent.com/qgpu-core": "30"}, 2048),
    ],
)
def test_pod_in_each_dialect_runs_with_what_it_requests(
    product: Product, name: str, limits: dict[str, str], memory_mib: int
) -> None:
    product.create(TEAM, user_pod(name, limits, FILL))
    got = filled_mib(product, name)
    assert memory_mib - 200 <= got <= memory_mib
    product.delete(TEAM, name)


def test_whole_card_belongs_to_one_pod_and_the_next_pod_gets_the_reason_why_it_waits(product: Product) -> None:
    for number in range(2):
        product.create(TEAM, user_pod(f"whole{number}", {"nvidia.com/gpu": "1"}, HOLD))
        product.wait(TEAM, f"whole{number}", "Running")
    product.create(TEAM, user_pod("late", native("1Gi", 10), FILL))

    def reason() -> str:
        condition = product.condition(TEAM, "late")
        return str(condition.get("message", "")) if condition.get("status") == "False" else ""

    told = product.cluster.wait_for(lambda: "0/1" in reason() and reason(), "the reason why it waits")
    assert "0/1 nodes" in str(told)
    product.delete(TEAM, "whole0")
    assert filled_mib(product, "late") <= 1024
    for name in ("whole1", "late"):
        product.delete(TEAM, name)


def test_gang_starts_together_or_not_at_all(product: Product) -> None:
    metadata = {"calabash.dev/gang": "g", "calabash.dev/gang-size": "3"}
    pods = [user_pod(f"member{i}", native("4Gi", 60), HOLD) for i in range(3)]
    for pod in pods:
        pod["metadata"]["annotations"] = metadata
    for pod in pods[:2]:
        product.create(TEAM, pod)
    waiting = [product.condition(TEAM, f"member{i}") for i in range(2)]
    assert all(c.get("status") != "True" for c in waiting)
    product.create(TEAM, pods[2])  # three of 60 percent do not fit on two cards: none may start

    def told() -> bool:
        return all("nodeName" not in product.pod(TEAM, f"member{i}")["spec"] for i in range(3)) and bool(
            product.condition(TEAM, "member2").get("message")
        )

    product.cluster.wait_for(told, "an answer for the gang")
    for i in range(3):
        product.delete(TEAM, f"member{i}")
    fitting = [user_pod(f"fits{i}", native("4Gi", 50), HOLD) for i in range(3)]
    for pod in fitting:
        pod["metadata"]["annotations"] = {**metadata, "calabash.dev/gang": "h"}
        product.create(TEAM, pod)
    for i in range(3):
        product.wait(TEAM, f"fits{i}", "Running")
    for i in range(3):
        product.delete(TEAM, f"fits{i}")


def test_what_a_pod_uses_is_told_and_a_drained_node_is_empty_and_gives_nothing(product: Product) -> None:
    gpu_node, wait_for = product.gpu_node, product.cluster.wait_for
    product.create(TEAM, user_pod("busy", native("2Gi", 30), "exec load tenant 300 1000000"))
    product.wait(TEAM, "busy", "Running")

    def told() -> bool:
        slices = [part for device in gpu_node.status().get("devices", []) for part in device.get("slices", [])]
        return any(1500 <= part.get("memoryUsedMib", 0) <= 2048 and "coreUsedPercent" in part for part in slices)

    try:
        wait_for(told, "what the pod uses")
    except TimeoutError as error:
        error.add_note(f"{gpu_node.status()}; {product.log(TEAM, 'busy')}")
        raise
    drain = Drain(load_client(product.cluster.kubeconfig), gpu_node.node.name, grace_s=0)
    drain.cordon()
    product.create(TEAM, user_pod("later", native("1Gi", 30), FILL))
    wait_for(lambda: product.condition(TEAM, "later").get("reason") == "Cordoned", "what it waits for")
    wait_for(lambda: drain.step(time.monotonic()) == [], "the node to be empty")
    assert gpu_node.slots() == []
    assert not product.api.exists(f"/api/v1/namespaces/{TEAM}/pods/busy")
    drain.cordon(on=False)
    assert filled_mib(product, "later") <= 1024
    product.delete(TEAM, "later")


def test_restarted_planner_knows_the_pods_that_have_whole_cards_and_can_preempt_them(product: Product) -> None:
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 9}
    product.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    for number in range(2):
        product.create(TEAM, user_pod(f"usual{number}", {"nvidia.com/gpu": "1"}, HOLD))
        product.wait(TEAM, f"usual{number}", "Running")
    product.cluster.wait_for(lambda: len(_told(product)) == 2, "the agent to tell of both")
    product.cluster.restart("planner")
    product.create(TEAM, user_pod("now", {"nvidia.com/gpu": "1"}, HOLD, priorityClassName="urgent"))
    product.wait(TEAM, "now", "Running")
    left = [name for name in ("usual0", "usual1") if product.api.exists(f"/api/v1/namespaces/{TEAM}/pods/{name}")]
    assert len(left) == 1
    for name in (*left, "now"):
        product.delete(TEAM, name)


def test_planner_and_agent_die_and_nothing_is_given_twice(product: Product) -> None:
    product.create(TEAM, user_pod("held", native("9Gi", 60), HOLD))
    product.wait(TEAM, "held", "Running")
    product.cluster.restart("planner")
    product.gpu_node.restart_agent()
    product.create(TEAM, user_pod("second", native("9Gi", 60), HOLD))
    product.wait(TEAM, "second", "Running")
    devices = {slice_["device"] for name in ("held", "second") for slice_ in _planned(product, name)}
    assert len(devices) == 2
    for name in ("held", "second"):
        product.delete(TEAM, name)
    product.cluster.wait_for(lambda: product.gpu_node.slots() == [], "the slots to be gone")


def _told(product: Product) -> list[dict[str, str]]:
    return [part for device in product.gpu_node.status().get("devices", []) for part in device.get("slices", [])]


def _planned(product: Product, name: str) -> list[dict[str, str]]:
    import json

    plan = json.loads(product.pod(TEAM, name)["metadata"]["annotations"]["calabash.dev/plan"])
    slices: list[dict[str, str]] = plan["containers"][0]["slices"]
    return slices


def cards_of(product: Product, pod: str) -> list[tuple[str, str]]:
    """Return the cards on which the GpuNode reports a slice of the pod, each with its sharing mode."""
    devices = product.gpu_node.status()["devices"]
    return [(d["uuid"], part["mode"]) for d in devices for part in d.get("slices", []) if part["pod"] == pod]


def test_where_admission_is_not_nvidias_name_is_a_whole_card_and_never_one_with_slices(product: Product) -> None:
    gpu_node, wait_for = product.gpu_node, product.cluster.wait_for
    plain = product.namespace("plain", **{"calabash.dev/admission": "off"})
    wait_for(lambda: gpu_node.device_id_count(GPU) == 2, "both cards to be offered")
    product.create(TEAM, user_pod("slice", native("1Gi", 30), HOLD))
    product.wait(TEAM, "slice", "Running")
    product.create(plain, user_pod("whole", {GPU: "1"}, f"load devices; load fill 2; {HOLD}"))
    product.wait(plain, "whole", "Running")
    ((card, mode),) = wait_for(lambda: cards_of(product, f"{plain}/whole"), "the node to tell of it")
    assert mode == "exclusive"
    assert (card, "vgpu") not in cards_of(product, f"{TEAM}/slice")

    def sees() -> list[str]:
        words = product.log(plain, "whole").split()
        return words if len(words) > 1 else []

    said = wait_for(sees, "what it sees")
    assert len(said) == 2, f"one card, and how much it has got: {said}"
    assert 14000 < int(said[-1]) // MIB <= 15360, "all of one T4"
    wait_for(lambda: gpu_node.device_id_count(GPU) == 1, "the card with a slice to be offered no more")
    product.create(plain, user_pod("second", {GPU: "1"}, HOLD))
    wait_for(lambda: f"Insufficient {GPU}" in product.condition(plain, "second").get("message", ""), "why it waits")
    gpu_node.restart_agent()
    assert len(gpu_node.offered(GPUS, GPU)[GPU]) == 1, "the one that is in use"
    product.create(TEAM, user_pod("beside", native("1Gi", 30), HOLD))
    product.wait(TEAM, "beside", "Running")
    assert {s["device"] for s in _planned(product, "beside")} == {s["device"] for s in _planned(product, "slice")}
    assert cards_of(product, f"{plain}/whole") == [(card, "exclusive")]
    status = product.pod(plain, "whole")["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
    assert "nodeName" not in product.pod(plain, "second")["spec"]
    for name in ("slice", "beside"):
        product.delete(TEAM, name)
    product.wait(plain, "second", "Running")
    assert {c for name in ("whole", "second") for c, _ in cards_of(product, f"{plain}/{name}")} <= set(
        gpu_node.devices()
    )
    product.create(TEAM, user_pod("late", native("1Gi", 10), FILL))
    wait_for(lambda: "0/1" in product.condition(TEAM, "late").get("message", ""), "the planner to see both as taken")
    for name in ("whole", "second"):
        product.delete(plain, name)
    assert filled_mib(product, "late") <= 1024
    product.delete(TEAM, "late")
    wait_for(lambda: gpu_node.slots() == [], "the slots to be gone")
