"""The agent on a real kubelet and containerd: a container has exactly what its plan says, whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import MIB, PODS, GpuNode, sliced
from tests.kube.needs import need
from tests.kube.node import RealNode

FILL = "exec load fill 2"  # takes memory in steps of 2 MiB until it is refused, and prints how much it got
HOLD = "sleep 1000"


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        yield GpuNode(RealNode(cluster), tmp_path_factory.mktemp("gpu_node"))


@pytest.fixture(autouse=True)
def no_pods_left(gpu_node: GpuNode) -> Iterator[None]:
    """A test that fails does not make the next one fail."""
    yield
    for pod in gpu_node.cluster.api.get(PODS)["items"]:
        gpu_node.delete(pod["metadata"]["name"])


def got_mib(log: str) -> int:
    """What ``FILL`` has got."""
    return int(log.rsplit(maxsplit=1)[-1]) // MIB


def within(got: int, limit_mib: int) -> bool:
    """A context takes a part of the limit; nothing is had beyond it."""
    return limit_mib - 200 <= got <= limit_mib


def test_a_pod_gets_its_slice_and_not_more(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    name = gpu_node.run([sliced("main", memory_mib=1024, devices=[device])], {"main": FILL})
    assert gpu_node.wait(name, "Succeeded", "Failed") == "Succeeded", gpu_node.log(name)
    assert within(got_mib(gpu_node.log(name)), 1024)
    gpu_node.delete(name)
    gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slot to be gone")
    assert gpu_node.card()["used_bytes"] == 0


def test_neighbours_on_one_card_have_each_their_own(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    sizes = (512, 1024, 2048)
    names = [
        gpu_node.run([sliced("main", memory_mib=size, cores=20, devices=[device])], {"main": FILL}) for size in sizes
    ]
    for name, size in zip(names, sizes, strict=True):
        assert gpu_node.wait(name, "Succeeded", "Failed") == "Succeeded"
        assert within(got_mib(gpu_node.log(name)), size)
        gpu_node.delete(name)


def test_init_sidecar_and_main_containers_have_each_their_own(gpu_node: GpuNode) -> None:
    first, second = gpu_node.devices()
    plan = [
        sliced("early", memory_mib=600, devices=[first]),
        sliced("side", memory_mib=700, devices=[second]),
        sliced("main", memory_mib=900, devices=[first]),
        sliced("pair", memory_mib=500, devices=[first, second]),
    ]
    scripts = {"early": FILL, "side": f"load fill 2; {HOLD}", "main": FILL, "pair": FILL}
    name = gpu_node.run(plan, scripts, init=["early"], sidecars=["side"])
    assert gpu_node.wait(name, "Succeeded", "Failed") == "Succeeded"
    for container, size in (("early", 600), ("side", 700), ("main", 900), ("pair", 500)):
        assert within(got_mib(gpu_node.log(name, container)), size), container
    gpu_node.delete(name)


def test_a_container_that_is_started_again_has_the_same(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    script = "load fill 2 > /dev/termination-log; exit 1"
    name = gpu_node.run([sliced("main", memory_mib=800, devices=[device])], {"main": script}, restart="Always")

    def second_end() -> str:
        statuses = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", [])
        again = bool(statuses) and int(statuses[0]["restartCount"]) >= 2
        return str(statuses[0]["lastState"].get("terminated", {}).get("message", "")) if again else ""

    assert within(got_mib(gpu_node.cluster.wait_for(second_end, "the end of its second run", 90)), 800)
    gpu_node.delete(name)


def test_a_user_without_rights_on_a_root_file_system_for_reading_has_the_same(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    security = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}
    plan = [sliced("main", memory_mib=700, devices=[device])]
    name = gpu_node.run(plan, {"main": f"id -u; {FILL}"}, more={"securityContext": security})
    assert gpu_node.wait(name, "Succeeded", "Failed") == "Succeeded", gpu_node.log(name)
    assert gpu_node.log(name).split()[0] == "1000"
    assert within(got_mib(gpu_node.log(name)), 700)
    gpu_node.delete(name)


def test_root_in_a_container_cannot_change_its_limits(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    attack = (
        "cat /etc/ld.so.preload > /etc/ld.so.preload.mine; echo > /etc/ld.so.preload; "
        "echo x >> /run/calabash/slot/limits; rm /run/calabash/slot/limits; touch /run/calabash/slot/more; "
        f"unset LD_PRELOAD; {FILL}"
    )
    name = gpu_node.run([sliced("main", memory_mib=640, devices=[device])], {"main": attack})
    assert gpu_node.wait(name, "Succeeded", "Failed") == "Succeeded"
    assert within(got_mib(gpu_node.log(name)), 640)
    gpu_node.delete(name)


def test_a_pod_without_a_plan_is_told_why_it_does_not_start(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    name = gpu_node.run([], {"main": HOLD}, more={"containers": [_asking()]})

    def told() -> str:
        statuses = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", [])
        waiting = statuses[0]["state"].get("waiting", {}) if statuses else {}
        return str(waiting.get("message", ""))

    message = gpu_node.cluster.wait_for(told, "the reason")
    assert "has no plan" in message
    assert "hint" in message
    assert gpu_node.slots() == []
    gpu_node.delete(name)
    assert gpu_node.run([sliced("main", memory_mib=64, devices=[device])], {"main": "true"})


def _asking() -> dict[str, object]:
    limits = {"calabash.dev/gpus": "1"}
    return {"name": "main", "image": "localhost/cuda:1", "command": ["sh", "-c", HOLD], "resources": {"limits": limits}}


def test_the_node_tells_who_is_on_which_device(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[1]
    name = gpu_node.run([sliced("main", memory_mib=320, cores=40, devices=[device])], {"main": HOLD})
    gpu_node.wait(name, "Running")

    def told() -> list[dict[str, object]]:
        found = next(d for d in gpu_node.status()["devices"] if d["uuid"] == device)
        slices: list[dict[str, object]] = found.get("slices", [])
        return slices

    slices = gpu_node.cluster.wait_for(told, "the slice in the node's status")
    assert len(slices) == 1
    assert slices[0]["pod"] == f"default/{name}"
    assert (slices[0]["container"], slices[0]["memoryMib"], slices[0]["corePercent"]) == ("main", 320, 40)
    condition = gpu_node.status()["conditions"][0]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    gpu_node.delete(name)
    gpu_node.cluster.wait_for(lambda: not told(), "the slice to be gone")


def test_running_pods_keep_their_slices_while_agent_and_kubelet_die(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    script = "load wait < /tmp/in & while [ ! -e /tmp/go ]; do sleep 0.1; done; exec load fill 2"
    name = gpu_node.run([sliced("main", memory_mib=512, devices=[device])], {"main": f"touch /tmp/in; {script}"})
    gpu_node.wait(name, "Running")
    before = gpu_node.slots()
    gpu_node.cluster.restart("agent")
    gpu_node.cluster.restart(gpu_node.node.kubelet)
    gpu_node.wait_for_tokens()
    assert gpu_node.slots() == before
    gpu_node.let_go(name)
    assert gpu_node.wait(name, "Succeeded", "Failed") == "Succeeded"
    assert within(got_mib(gpu_node.log(name)), 512)
    gpu_node.delete(name)
    gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slot to be gone")


def test_what_ended_while_the_agent_was_away_is_given_back(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    name = gpu_node.run([sliced("main", memory_mib=512, devices=[device])], {"main": HOLD})
    gpu_node.wait(name, "Running")
    gpu_node.cluster.kill("agent")
    gpu_node.delete(name)
    assert len(gpu_node.slots()) == 1
    gpu_node.cluster.start("agent")
    gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slot to be gone")


def test_the_agent_is_small(gpu_node: GpuNode) -> None:
    """After everything above: what stays resident of it, the pages shared with other programs included."""
    found = gpu_node.cluster.exec_inside("pgrep", "-f", "calabash.kubernetes.node.daemon", beside=gpu_node.node.name)
    status = gpu_node.cluster.exec_inside("cat", f"/proc/{found.split()[0]}/status", beside=gpu_node.node.name)
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    print(f"resident: {resident_kib / 1024:.1f} MiB")
    assert resident_kib <= 80 * 1024
