"""Tests of every sharing mode in pods, on one real node with cards of several models.

A container has what the annotations of its pod request, a card changes its sharing mode only when it is idle, and
everything that was allocated is released.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import MIB, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod
from tests.native.sim_cuda_programs import program

from calabash.adapters.kube import load_client
from calabash.adapters.kube.objects.resources import GPU_NODE, GpuNodeDevice
from calabash.cli.kubectl.device import DeviceDrain, find
from calabash.kubernetes.node_plugin.containers.edits import SLOT_INSIDE
from calabash.kubernetes.objects.names import CORES, GPUS, ISOLATION, MEMORY, MODE, MODELS, SPILL
from calabash.kubernetes.objects.plan import PodPlan, read_plan
from calabash.model.errors import CalabashError

TEAM = "team"
SHOW = "load devices; load fill 16"  # which devices it sees, then how many bytes it gets
FOREVER = f"{SHOW}; exec sleep 1000"
SEES = "load devices; exec sleep 1000"  # takes nothing, so that it is in nobody's way where memory is not split
A100, H100, T4 = "A100", "H100", "T4"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    with Cluster(lifecycle=True, users=USERS) as cluster:
        gpu_node = GpuNode(
            RealNode(cluster),
            tmp_path_factory.mktemp("modes"),
            gpus="2xA100-80GB,1xH100,1xT4",
            programs_inside=[program("sim_mps_client")],
            words=["--spill=4096"],
        )
        with Product(gpu_node) as made:
            made.namespace(TEAM)
            yield made


@pytest.fixture(autouse=True)
def everything_comes_back(product: Product) -> Iterator[None]:
    """Delete all pods after each test, and check that no slice is allocated and every card is idle."""
    yield
    for pod in product.api.get(f"/api/v1/namespaces/{TEAM}/pods")["items"]:
        product.api.delete(f"/api/v1/namespaces/{TEAM}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    product.cluster.wait_for(lambda: product.gpu_node.slots() == [], "the slots to be gone")
    product.cluster.wait_for(lambda: set(modes(product).values()) == {""}, "every card to be idle")


def modes(product: Product) -> dict[str, str]:
    """Return the mode of each card, by UUID."""
    return {device["uuid"]: device.get("mode", "") for device in product.gpu_node.status().get("devices", [])}


def start(
    product: Product,
    name: str,
    script: str,
    limits: Mapping[str, str] | None = None,
    *,
    restart: str = "Never",
    **said: str,
) -> None:
    """Create a pod with one container.

    Args:
        script: shell script of the container.
        limits: resource limits of the container; None for one device.
        restart: restart policy of the pod.
        said: values of the annotations ``mode``, ``isolation``, ``models`` and ``spill``.
    """
    names = {"mode": MODE, "isolation": ISOLATION, "models": MODELS, "spill": SPILL}
    made = user_pod(name, dict(limits or {GPUS: "1"}), script, restartPolicy=restart)
    made["metadata"]["annotations"] = {names[word]: value for word, value in said.items()}
    product.create(TEAM, made)


def said(product: Product, name: str, lines: int) -> list[str]:
    """Wait until a pod has printed at least ``lines`` lines of one word each, and return all of them."""

    def printed() -> list[str]:
        found = product.log(TEAM, name).split()
        return found if len(found) >= lines else []

    product.wait(TEAM, name, "Running", "Succeeded")
    return product.cluster.wait_for(printed, f"{lines} lines of pod {name}")


def plan_of(product: Product, name: str) -> PodPlan:
    return read_plan(product.pod(TEAM, name)["metadata"]["annotations"]["calabash.dev/plan"])


def wait_for_message(product: Product, name: str, *words: str) -> str:
    """Wait until the message of the pod's condition contains all these words, and return the message."""

    def told() -> str:
        message = str(product.condition(TEAM, name).get("message", ""))
        return message if all(word in message for word in words) else ""

    try:
        return product.cluster.wait_for(told, f"why {name} waits")
    except TimeoutError as error:
        error.add_note(str(product.condition(TEAM, name)))
        raise


def slices(product: Product) -> dict[str, Json]:
    """Return the slice that the GpuNode reports for each pod, with its device, by the name of the pod."""
    devices = product.gpu_node.status()["devices"]
    return {
        part["pod"].partition("/")[2]: {**part, "device": d["uuid"]} for d in devices for part in d.get("slices", [])
    }


def wait_for_slices(product: Product, count: int) -> dict[str, Json]:
    """Wait until the GpuNode reports slices of ``count`` pods, and return the slices."""
    product.cluster.wait_for(lambda: len(slices(product)) == count, f"the node to tell of {count} pods")
    return slices(product)


def test_all_modes_stand_side_by_side_and_every_pod_has_what_its_words_say(product: Product) -> None:
    start(product, "named", FOREVER, {"nvidia.com/mig-1g.10gb": "1"}, models=A100)
    start(product, "hardware", FOREVER, {MEMORY: "16Gi"}, isolation="hardware", models=A100)
    start(product, "turn0", FOREVER, models=T4, mode="timeslice")
    start(product, "turn1", SEES, models=T4, mode="timeslice")
    start(product, "whole", FOREVER, models=H100, mode="exclusive")
    start(product, "sliced", FOREVER, {MEMORY: "4Gi", CORES: "30"}, models=A100)
    lines = {"named": 2, "hardware": 2, "turn0": 2, "turn1": 1, "whole": 2, "sliced": 2}
    seen = {name: said(product, name, count) for name, count in lines.items()}
    assert {name: len(found) for name, found in seen.items()} == lines, "one device each, and how much it got"
    held = wait_for_slices(product, 6)
    got_mib = {name: int(found[1]) // MIB for name, found in seen.items() if len(found) == 2}
    cards = {card["uuid"]: card for card in (product.gpu_node.card(index) for index in range(4))}
    assert {name: (part["mode"], part.get("profile", "")) for name, part in held.items()} == {
        "named": ("mig", "1g.10gb"),
        "hardware": ("mig", "1g.20gb"),
        "turn0": ("timeslice", ""),
        "turn1": ("timeslice", ""),
        "whole": ("exclusive", ""),
        "sliced": ("vgpu", ""),
    }
    (divided,) = (card for card in cards.values() if card["compute_instances"])
    assert {held[name]["device"] for name in ("named", "hardware")} == {divided["uuid"]}
    parts = {part["uuid"].removeprefix("MIG-") for part in divided["compute_instances"]}
    assert {seen[name][0] for name in ("named", "hardware")} == parts, "each sees its own part"
    for name in ("turn0", "turn1", "whole", "sliced"):
        assert f"GPU-{seen[name][0]}" == held[name]["device"]
    for name in ("named", "hardware", "sliced"):
        assert held[name]["memoryMib"] - 600 <= got_mib[name] <= held[name]["memoryMib"]
    whole = cards[held["whole"]["device"]]
    assert got_mib["whole"] > (whole["memory_total_bytes"] // MIB) * 0.97
    assert got_mib["turn0"] > 14000, "memory is not split"
    assert modes(product) == {part["device"]: part["mode"] for part in held.values()}


def test_card_changes_its_mode_only_when_its_last_slice_is_released(product: Product) -> None:
    for name in ("turn0", "turn1"):
        start(product, name, SEES, models=T4, mode="timeslice")
    for name in ("turn0", "turn1"):
        said(product, name, 1)
    start(product, "sliced", SHOW, {MEMORY: "2Gi", CORES: "30"}, models=T4)
    wait_for_message(product, "sliced", "devices in another sharing mode")
    start(product, "turn2", SEES, models=T4, mode="timeslice")
    wait_for_message(
        product, "turn2", f"{TEAM}/sliced"
    )  # a pod that waits for a mode change is not overtaken by pods that would prevent the change
    product.delete(TEAM, "turn0")
    product.cluster.wait_for(lambda: len(slices(product)) == 1, "the first to be gone")
    assert set(modes(product).values()) == {"", "timeslice"}
    assert "nodeName" not in product.pod(TEAM, "sliced")["spec"]
    product.delete(TEAM, "turn1")
    got = said(product, "sliced", 2)
    assert 1024 < int(got[1]) // MIB <= 2048
    assert plan_of(product, "sliced").containers[0].mode == "vgpu"
    assert said(product, "turn2", 1)[0] == got[0], "and it changes back when that one has ended"


def test_pods_of_the_multi_process_service_have_their_shares_and_limits_and_the_service_ends_with_them(
    product: Product,
) -> None:
    client = "(echo alloc 1536; echo alloc 512; exec sleep 1000) | sim_mps_client"
    for name, cores in (("half", "50"), ("third", "30")):
        start(product, name, client, {MEMORY: "1Gi", CORES: cores}, mode="mps", models=T4)
    for name, multiprocessors in (("half", "20"), ("third", "12")):
        assert said(product, name, 5) == ["ready", "0", multiprocessors, "2", "0"], (
            "of 40; 1.5 GiB are refused, 0.5 not"
        )
    assert {part["mode"] for part in wait_for_slices(product, 2).values()} == {"mps"}
    for name in ("half", "third"):
        product.delete(TEAM, name)
    product.cluster.wait_for(lambda: product.gpu_node.card(3)["compute_mode"] == 0, "the card to be open again")


def test_memory_beyond_the_card_is_had_where_the_node_gives_it_and_waited_for_where_not(product: Product) -> None:
    start(product, "spilled", FOREVER, {MEMORY: "1Gi", CORES: "30"}, spill="512Mi", models=T4)
    start(product, "large", SHOW, {MEMORY: "8Gi", CORES: "30"}, spill="5Gi", models=T4)
    got = said(product, "spilled", 2)
    assert 824 <= int(got[1]) // MIB <= 1024
    (held,) = wait_for_slices(product, 1).values()
    assert (held["mode"], held["memoryMib"], held["spillMib"]) == ("vgpu", 1024, 512)
    wait_for_message(product, "large", "allows 4GiB of spilled memory, asked 5GiB")


def test_mig_slice_outlives_its_agent_and_its_container_and_is_granted_though_the_agent_dies(
    product: Product,
) -> None:
    cluster = product.cluster
    until_told = f"{SHOW}; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 1"
    start(product, "before", until_told, {"nvidia.com/mig-1g.10gb": "1"}, restart="Always")
    first = said(product, "before", 2)
    start(product, "meanwhile", FOREVER, {"nvidia.com/mig-3g.40gb": "1"}, models=A100)
    # A pod that reaches the kubelet while there is no agent fails for good.
    cluster.wait_for(lambda: "startTime" in product.pod(TEAM, "meanwhile")["status"], "the kubelet to have taken it")
    cluster.restart("agent")
    got = said(product, "meanwhile", 2)
    assert 38 * 1024 < int(got[1]) // MIB < 40 * 1024
    assert product.pod(TEAM, "before")["status"]["containerStatuses"][0]["restartCount"] == 0
    cluster.kubectl("exec", "-n", TEAM, "before", "--", "touch", "/tmp/go")

    def again() -> bool:
        status = product.pod(TEAM, "before")["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == 1 and status["state"].get("running"))

    cluster.wait_for(again, "its container to run again")
    assert said(product, "before", 2) == first


def test_card_for_a_virtual_machine_has_its_group_and_address_and_no_driver_files(product: Product) -> None:
    """KubeVirt's launcher finds a device by an environment variable with its address and by its IOMMU group."""
    inspect = "env; ls -d /dev/vfio/*; ls -d /run/calabash/* /usr/lib64/lib*; cat /etc/ld.so.preload; echo end"
    start(product, "machine", f"{inspect}; exec sleep 1000", models=T4, mode="passthrough")

    def printed() -> list[str]:
        found = product.log(TEAM, "machine").splitlines()
        return found if "end" in found else []

    product.wait(TEAM, "machine", "Running")
    lines = product.cluster.wait_for(printed, "what it sees")
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    (held,) = wait_for_slices(product, 1).values()
    (card,) = (d for d in product.gpu_node.status()["devices"] if d["uuid"] == held["device"])
    assert (held["mode"], card["health"]) == ("passthrough", "healthy"), "away, and not ill"
    address = environment["PCI_RESOURCE_CALABASH_DEV_GPUS"]
    assert address == environment["PCI_RESOURCE_NVIDIA_COM_TESLA_T4"]
    assert address == card["pciBusId"].lower()[4:]
    root = product.gpu_node.state.parent / "root"
    bound = root / "sys/bus/pci/devices" / address
    group = (bound / "iommu_group").resolve().name
    assert (bound / "driver").resolve().name == "vfio-pci"
    assert [line for line in lines if line.startswith("/")] == [f"/dev/vfio/{group}", "/dev/vfio/vfio", SLOT_INSIDE]
    assert not {"CUDA_VISIBLE_DEVICES", "CALABASH_SIM", "LD_PRELOAD"} & environment.keys()
    start(product, "sliced", SHOW, {MEMORY: "2Gi", CORES: "30"}, models=T4)
    wait_for_message(product, "sliced", "devices in another sharing mode")
    product.delete(TEAM, "machine")
    assert len(said(product, "sliced", 2)) == 2
    assert (bound / "driver").resolve().name == "nvidia"


def test_drained_card_gets_no_new_pods_and_is_undrained_and_tested_by_order(product: Product) -> None:
    cluster, node = product.cluster, product.gpu_node.node.name
    client = load_client(cluster.kubeconfig)
    drain = DeviceDrain(client, node, "3", reason="a new fan", grace_s=0)

    def told() -> GpuNodeDevice:
        found = client.get(GPU_NODE, node)
        assert found is not None
        return find(found, "3")

    start(product, "stays", FOREVER, {MEMORY: "1Gi", CORES: "30"}, models=T4)
    said(product, "stays", 2)
    drain.cordon()
    cluster.wait_for(lambda: told().reason == "drained: a new fan", "the agent to have heard of it")
    start(product, "later", SHOW, {MEMORY: "1Gi", CORES: "30"}, models=T4)
    wait_for_message(product, "later", "unhealthy")
    assert told().state == "draining"
    assert product.pod(TEAM, "stays")["status"]["phase"] == "Running"
    with pytest.raises(CalabashError, match="is used by"):
        drain.answer(drain.order("test"))
    product.gpu_node.restart_agent()
    cluster.wait_for(lambda: drain.step(time.monotonic()) == [], "the card to be empty")
    assert not product.api.exists(f"/api/v1/namespaces/{TEAM}/pods/stays")
    assert drain.answer(drain.order("test")).startswith("passed: ")
    assert "nodeName" not in product.pod(TEAM, "later")["spec"], "drained it stays, whatever a test says"
    drain.cordon(on=False)
    assert len(said(product, "later", 2)) == 2


def test_pod_with_a_worker_is_placed_beside_software_slices_and_has_what_it_requests(product: Product) -> None:
    start(product, "sliced", FOREVER, {MEMORY: "4Gi", CORES: "30"}, models=T4)
    start(
        product, "worker", f"ls /run/calabash; {FOREVER}", {MEMORY: "2Gi", CORES: "50"}, models=T4, isolation="brokered"
    )
    assert len(said(product, "sliced", 2)) == 2
    inside, device, got = said(product, "worker", 3)
    held = wait_for_slices(product, 2)
    assert inside == "worker.sock"
    assert (held["worker"]["mode"], held["sliced"]["mode"]) == ("brokered", "vgpu")
    assert held["worker"]["device"] == held["sliced"]["device"] == f"GPU-{device}"
    assert 1848 <= int(got) // MIB <= 2048
    assert plan_of(product, "worker").containers[0].mode == "brokered"
