"""Tests of every sharing mode with claims, with admission, planner, an unmodified kube-scheduler and a real kubelet.

A pod has what its claim requests, a card is in one mode at a time, and all files of a claim are removed after its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.kube.api import Json
from tests.kube.charts import need_helm, render
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import MIB, GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod
from tests.native.sim_cuda_programs import nvml_reader, program

TEAM, SMALL, WATCH = "team", "small", "watch"
GROUP = "/apis/resource.k8s.io/v1"
SHOW = "load devices; load fill 16"  # which devices it sees, then how many bytes it gets
FOREVER = f"{SHOW}; exec sleep 1000"
SEES = "load devices; exec sleep 1000"  # takes nothing, so that it is in nobody's way where memory is not split
CLIENT = "(echo alloc 1536; echo alloc 512; exec sleep 1000) | sim_mps_client"
A100, H100, T4 = "A100", "H100", "T4"
TURNS = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}
NODE_CARDS = "1xA100-80GB,1xH100,4xT4"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    need(node=True)
    need_helm()
    with Cluster(lifecycle=True, users=USERS) as cluster:
        classes = [m for m in render({"claims": {"nvidiaClasses": True}}) if m["kind"] == "DeviceClass"]
        cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(classes))
        gpu_node = GpuNode(
            RealNode(cluster),
            tmp_path_factory.mktemp("modes"),
            gpus=NODE_CARDS,
            programs_inside=[program("sim_mps_client"), nvml_reader()],
            words=["--allocation-api=claims"],
        )
        with Product(gpu_node) as made:
            made.namespace(TEAM)
            cluster.wait_for(lambda: cluster.api.get(f"{GROUP}/resourceslices")["items"], "slices of the node")
            yield made


@pytest.fixture(autouse=True)
def everything_comes_back(product: Product) -> Iterator[None]:
    """Delete all pods and claims after each test, and check that nothing of them is left on the node.

    No slot and no file of a claim may be left, and every card must be idle.
    """
    yield
    api = product.api
    for kind in ("pods", "resourceclaims"):
        for one in api.get(f"/api/v1/{kind}" if kind == "pods" else f"{GROUP}/{kind}")["items"]:
            meta = one["metadata"]
            if meta["namespace"] in {TEAM, SMALL, WATCH}:
                base = (
                    f"/api/v1/namespaces/{meta['namespace']}"
                    if kind == "pods"
                    else f"{GROUP}/namespaces/{meta['namespace']}"
                )
                api.delete(f"{base}/{kind}/{meta['name']}", {"gracePeriodSeconds": 0})
    node = product.gpu_node
    product.cluster.wait_for(lambda: node.slots() == [], "the slots to be gone")
    product.cluster.wait_for(lambda: not left_of_claims(product), "the notes and specs of claims to be gone")
    product.cluster.wait_for(lambda: set(modes(product).values()) == {""}, "every card to be idle")
    product.cluster.wait_for(lambda: not api.get(f"{GROUP}/resourceclaims")["items"], "the claims to be gone")


def modes(product: Product) -> dict[str, str]:
    """Return the mode of each card, by UUID."""
    return {device["uuid"]: device.get("mode", "") for device in product.gpu_node.status().get("devices", [])}


def left_of_claims(product: Product) -> list[str]:
    """Return the names of the files of claims on the node: the agent's notes and the CDI specs."""
    node = product.gpu_node.node
    directories = (node.outside("/var/lib/calabash/claims"), node.outside("/run/cdi"))
    return [path.name for directory in directories if directory.is_dir() for path in directory.iterdir()]


def start(
    product: Product,
    name: str,
    of: str,
    script: str,
    *selectors: str,
    amounts: dict[str, str] | None = None,
    config: Json | None = None,
    namespace: str = TEAM,
    **exactly: Any,
) -> None:
    """Create a pod and a claim of the same name for one device, as a user writes them.

    Args:
        name: name of the pod and of the claim.
        of: name of the device class.
        script: shell script of the pod's container.
        selectors: CEL selectors of the request.
        amounts: requested amounts of the device's capacity.
        config: opaque driver parameters of the claim.
        namespace: namespace of both.
        exactly: further fields of the request.
    """
    wanted: Json = {"deviceClassName": of, **exactly}
    if amounts:
        wanted["capacity"] = {"requests": amounts}
    if selectors:
        wanted["selectors"] = [{"cel": {"expression": expression}} for expression in selectors]
    devices: Json = {"requests": [{"name": "gpu", "exactly": wanted}]}
    if config is not None:
        devices["config"] = [{"opaque": config}]
    claim = {"metadata": {"name": name}, "spec": {"devices": devices}}
    product.api.create(f"{GROUP}/namespaces/{namespace}/resourceclaims", claim)
    pod = user_pod(name, {}, script, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    product.create(namespace, pod)


def of_model(model: str) -> str:
    return f'device.attributes["calabash.dev"].model.contains("{model}")'


def wait_for_words(product: Product, name: str, words: int, namespace: str = TEAM) -> list[str]:
    """Wait until a pod has printed at least ``words`` words, and return all words."""

    def printed() -> list[str]:
        found = product.log(namespace, name).split()
        return found if len(found) >= words else []

    product.wait(namespace, name, "Running", "Succeeded")
    return product.cluster.wait_for(printed, f"{words} words of pod {name}")


def lines_of(product: Product, name: str, namespace: str = TEAM) -> list[str]:
    """Wait until a pod has printed ``end``, and return the lines before it."""

    def printed() -> list[str]:
        found = product.log(namespace, name).splitlines()
        return found if "end" in found else []

    product.wait(namespace, name, "Running")
    return product.cluster.wait_for(printed, f"all lines of pod {name}")


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


def cards(product: Product) -> dict[str, Json]:
    """Return the state of the cards as the simulated driver records it, by UUID."""
    return {card["uuid"]: card for card in map(product.gpu_node.card, range(6))}


def wait_for_reason(product: Product, name: str, reason: str, namespace: str = TEAM) -> str:
    """Wait until the pod's condition has this reason, and return its message."""

    def told() -> str:
        found = product.condition(namespace, name)
        return str(found.get("message", "?")) if found.get("reason") == reason else ""

    try:
        return product.cluster.wait_for(told, f"{name} to be told {reason}")
    except TimeoutError as error:
        error.add_note(str(product.condition(namespace, name)))
        raise


def test_all_modes_stand_side_by_side_and_every_pod_has_what_its_claim_says(product: Product) -> None:
    profile = 'device.attributes["calabash.dev"].profile == "1g.10gb"'
    theirs = 'device.attributes["gpu.nvidia.com"].profile == "2g.20gb"'
    product_name = f'device.attributes["gpu.nvidia.com"].productName.contains("{H100}")'
    start(product, "part", "mig.calabash.dev", FOREVER, profile, of_model(A100))
    start(product, "theirs", "mig.nvidia.com", FOREVER, theirs, of_model(A100), config=of_nvidia("MigDeviceConfig"))
    start(product, "whole", "gpu.nvidia.com", FOREVER, product_name, config=of_nvidia("GpuConfig"))
    start(product, "turn0", "timeslice.calabash.dev", FOREVER, of_model(T4))
    start(product, "turn1", "timeslice.calabash.dev", SEES, of_model(T4))
    start(product, "half", "mps.calabash.dev", CLIENT, of_model(T4), amounts={"memory": "1Gi", "cores": "50"})
    start(product, "third", "mps.calabash.dev", CLIENT, of_model(T4), amounts={"memory": "1Gi", "cores": "30"})
    start(product, "sliced", "vgpu.calabash.dev", FOREVER, of_model(T4), amounts={"memory": "4Gi", "cores": "30"})
    start(
        product,
        "worker",
        "brokered.calabash.dev",
        f"ls /run/calabash; {FOREVER}",
        of_model(T4),
        amounts={"memory": "2Gi", "cores": "50"},
    )
    words = {
        "part": 2,
        "theirs": 2,
        "whole": 2,
        "turn0": 2,
        "turn1": 1,
        "half": 5,
        "third": 5,
        "sliced": 2,
        "worker": 3,
    }
    seen = {name: wait_for_words(product, name, count) for name, count in words.items()}
    assert {name: len(found) for name, found in seen.items()} == words, "one device each, and how much it got"
    held = wait_for_slices(product, 9)
    assert {name: (part["mode"], part.get("profile", "")) for name, part in held.items()} == {
        "part": ("mig", "1g.10gb"),
        "theirs": ("mig", "2g.20gb"),
        "whole": ("exclusive", ""),
        "turn0": ("timeslice", ""),
        "turn1": ("timeslice", ""),
        "half": ("mps", ""),
        "third": ("mps", ""),
        "sliced": ("vgpu", ""),
        "worker": ("brokered", ""),
    }
    states = cards(product)
    (divided,) = (card for card in states.values() if card["compute_instances"])
    parts = {part["uuid"].removeprefix("MIG-") for part in divided["compute_instances"]}
    assert {seen[name][0] for name in ("part", "theirs")} == parts, "one card was cut, and each sees its own part"
    assert held["part"]["device"] == held["theirs"]["device"] == divided["uuid"]
    for name in ("whole", "turn0", "turn1", "sliced"):
        assert f"GPU-{seen[name][0]}" == held[name]["device"]
    assert seen["worker"][:2] == ["worker.sock", held["worker"]["device"].removeprefix("GPU-")]
    got_mib = {name: int(seen[name][-1]) // MIB for name in ("part", "theirs", "whole", "turn0", "sliced", "worker")}
    for name in ("part", "theirs", "sliced", "worker"):
        assert held[name]["memoryMib"] - 600 <= got_mib[name] <= held[name]["memoryMib"], name
    assert got_mib["whole"] > (states[held["whole"]["device"]]["memory_total_bytes"] // MIB) * 0.97
    assert got_mib["turn0"] > 14000, "memory is not split"
    for name, multiprocessors in (("half", "20"), ("third", "12")):
        assert seen[name] == ["ready", "0", multiprocessors, "2", "0"], "of 40; 1.5 GiB are refused, 0.5 not"
    assert held["turn0"]["device"] == held["turn1"]["device"]
    assert held["half"]["device"] == held["third"]["device"]
    ways = {(part["device"], part["mode"].replace("brokered", "vgpu")) for part in held.values()}
    assert len({device for device, _ in ways}) == len(ways), "no card is given in two ways"
    for name in held:
        product.delete(TEAM, name)
    product.cluster.wait_for(lambda: product.gpu_node.slots() == [], "the slots to be gone")
    (service,) = {held["half"]["device"]}
    product.cluster.wait_for(lambda: cards(product)[service]["compute_mode"] == 0, "the card of the service to be open")
    start(product, "again", "calabash.dev", FOREVER, of_model(A100))
    assert int(wait_for_words(product, "again", 2)[1]) // MIB > 80 * 1024 * 0.97, "it is in one piece again"
    assert cards(product)[divided["uuid"]]["compute_instances"] == []


def of_nvidia(kind: str) -> Json:
    """Return opaque parameters of a claim for NVIDIA's driver."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": TURNS}
    return {"driver": "gpu.nvidia.com", "parameters": parameters}


def test_card_for_a_virtual_machine_has_its_group_and_address_and_is_returned_to_its_driver(
    product: Product,
) -> None:
    inspect = "env; ls -d /dev/vfio/*; ls -d /run/calabash/* /usr/lib64/lib*; cat /etc/ld.so.preload; echo end"
    start(product, "machine", "vfio.calabash.dev", f"{inspect}; exec sleep 1000", of_model(T4))
    lines = lines_of(product, "machine")
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    (held,) = wait_for_slices(product, 1).values()
    (card,) = (d for d in product.gpu_node.status()["devices"] if d["uuid"] == held["device"])
    assert (held["mode"], card["health"]) == ("passthrough", "healthy"), "away, and not ill"
    address = card["pciBusId"].lower()[4:]
    assert environment["PCI_RESOURCE_NVIDIA_COM_TESLA_T4"] == address
    bound = product.gpu_node.state.parent / "root" / "sys/bus/pci/devices" / address
    assert (bound / "driver").resolve().name == "vfio-pci"
    group = (bound / "iommu_group").resolve().name
    assert [line for line in lines if line.startswith("/dev")] == [f"/dev/vfio/{group}", "/dev/vfio/vfio"]
    assert not {"CUDA_VISIBLE_DEVICES", "CALABASH_SIM", "LD_PRELOAD"} & environment.keys()
    product.delete(TEAM, "machine")
    product.cluster.wait_for(lambda: (bound / "driver").resolve().name == "nvidia", "the card to be its driver's again")


def test_who_watches_sees_all_cards_and_takes_nothing(product: Product) -> None:
    product.namespace(WATCH, **{"resource.kubernetes.io/admin-access": "true"})
    start(product, "used", "vgpu.calabash.dev", FOREVER, of_model(T4), amounts={"memory": "1Gi", "cores": "30"})
    wait_for_words(product, "used", 2)
    script = "sim_nvml_look; load devices && echo computed; ls -d /run/calabash/slot; echo end; exec sleep 1000"
    start(product, "admin", "observed.calabash.dev", script, namespace=WATCH, adminAccess=True, allocationMode="All")
    lines = lines_of(product, "admin", WATCH)
    shown = {line.split()[0] for line in lines if line.startswith("GPU-")}
    assert shown == set(cards(product))
    assert "computed" not in lines
    assert "/run/calabash/slot" not in lines
    assert set(wait_for_slices(product, 1)) == {"used"}
    start(product, "beside", "calabash.dev", SEES, of_model(H100))
    assert len(wait_for_words(product, "beside", 1)) == 1, "who watches a card keeps nobody from it"


def test_claim_waits_in_its_queue_and_starts_when_the_queue_has_room(product: Product) -> None:
    api = product.api
    queue = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": SMALL}, "spec": {"limit": 1}}
    api.create("/apis/calabash.dev/v1alpha1/queues", queue)
    product.namespace(SMALL, **{"calabash.dev/queue": SMALL})
    for name in ("first", "second"):
        start(product, name, "calabash.dev", FOREVER, of_model(T4), namespace=SMALL)
        if name == "first":
            assert len(wait_for_words(product, name, 2, SMALL)) == 2
    assert SMALL in wait_for_reason(product, "second", "QueueOverLimit", SMALL)
    claim = api.get(f"{GROUP}/namespaces/{SMALL}/resourceclaims/second")
    assert "allocation" not in claim.get("status", {})
    assert set(wait_for_slices(product, 1)) == {"first"}
    product.delete(SMALL, "first")
    device, got = wait_for_words(product, "second", 2, SMALL)
    held = wait_for_slices(product, 1)["second"]
    assert f"GPU-{device}" == held["device"]
    assert int(got) // MIB > 14000
