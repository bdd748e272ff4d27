"""Tests of a container's slice on a real kubelet and containerd. They are run for both allocation APIs."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.kube import programs
from tests.kube.card_time import use_their_shares
from tests.kube.gpu_node import CUDA, DISTROLESS, PODS, GpuNode, got_mib, sliced

FILL = "load fill 2"  # takes memory in steps of 2 MiB until it is refused, and prints how much it got
HOLD = "sleep 1000"
KERNEL_NS = 1_000_000


def within(got: int, limit_mib: int) -> bool:
    """Return True if a program got nearly its memory limit and no more; a CUDA context takes a part of the limit."""
    return limit_mib - 200 <= got <= limit_mib


def strict(image: str, *command: str) -> dict[str, Any]:
    """Return a container without privileges and with a read-only root file system."""
    return {
        "image": image,
        "args": list(command),
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _is_sandbox(process: Path, pod_uid: str) -> bool:
    try:
        return (process / "comm").read_text() == "pause\n" and pod_uid in (process / "cgroup").read_text()
    except OSError:
        return False


def output_so_far(gpu_node: GpuNode, name: str, container: str = "main") -> str:
    """Return the output of a container so far; "" while the container is being created."""
    try:
        return gpu_node.log(name, container)
    except RuntimeError:  # its container is being created
        return ""


class Containers:
    """Tests for modules that define a fixture ``gpu_node``.

    Amounts of memory are multiples of 128 MiB, because claims are allocated in these steps.
    """

    def test_pod_gets_its_slice_and_not_more(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        name = gpu_node.run([sliced("main", memory_mib=1024, devices=[device])], {"main": FILL})
        gpu_node.wait_for_success(name)
        assert within(got_mib(gpu_node.log(name)), 1024)
        gpu_node.delete(name)
        gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slot to be gone")
        assert gpu_node.card()["used_bytes"] == 0

    def test_pods_on_one_card_each_have_their_own_slice(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        sizes = (512, 1024, 2048)
        names = [
            gpu_node.run([sliced("main", memory_mib=size, cores=20, devices=[device])], {"main": FILL})
            for size in sizes
        ]
        for name, size in zip(names, sizes, strict=True):
            gpu_node.wait_for_success(name)
            assert within(got_mib(gpu_node.log(name)), size)
            gpu_node.delete(name)

    def test_init_sidecar_and_main_containers_each_have_their_own_slice(self, gpu_node: GpuNode) -> None:
        first, second = gpu_node.devices()
        plan = [
            sliced("early", memory_mib=640, devices=[first]),
            sliced("side", memory_mib=768, devices=[second]),
            sliced("main", memory_mib=896, devices=[first]),
            sliced("pair", memory_mib=512, devices=[first, second]),
        ]
        scripts = {"early": FILL, "side": f"load fill 2; {HOLD}", "main": FILL, "pair": FILL}
        name = gpu_node.run(plan, scripts, init=["early"], sidecars=["side"])
        gpu_node.wait_for_success(name)
        for container, size in (("early", 640), ("side", 768), ("main", 896), ("pair", 512)):
            assert within(got_mib(gpu_node.log(name, container)), size), container
        gpu_node.delete(name)

    def test_restarted_container_has_the_same_slice(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        script = "load fill 2 > /dev/termination-log; exit 1"
        name = gpu_node.run([sliced("main", memory_mib=768, devices=[device])], {"main": script}, restart="Always")

        def second_end() -> str:
            statuses = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", [])
            again = bool(statuses) and int(statuses[0]["restartCount"]) >= 1 and "waiting" in statuses[0]["state"]
            return str(statuses[0]["lastState"]["terminated"]["message"]) if again else ""

        assert within(got_mib(gpu_node.cluster.wait_for(second_end, "the end of its second run")), 768)
        gpu_node.delete(name)

    def test_init_containers_have_their_slices_again_in_a_new_sandbox(self, gpu_node: GpuNode) -> None:
        """Simulate a restart of the machine by killing the sandbox.

        The API server still has the status of the init containers that ended in the old sandbox. They run again in the
        new one and must have their slices.
        """
        first, second = gpu_node.devices()
        plan = [sliced("early", memory_mib=640, devices=[first]), sliced("main", memory_mib=512, devices=[second])]
        name = gpu_node.run(plan, {"early": FILL, "main": f"load fill 2; {HOLD}"}, init=["early"], restart="Always")
        gpu_node.wait(name, "Running")
        time.sleep(2)  # the times in a pod's container statuses are whole seconds
        uid = gpu_node.cluster.api.get(f"{PODS}/{name}")["metadata"]["uid"]
        (sandbox,) = (
            int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm") if _is_sandbox(path.parent, uid)
        )
        os.kill(sandbox, signal.SIGKILL)

        def again() -> bool:
            status = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"]
            (main,) = status["containerStatuses"]
            return int(main["restartCount"]) >= 1 and "running" in main["state"]

        gpu_node.cluster.wait_for(again, "the pod to run again")
        assert within(got_mib(gpu_node.log(name, "early")), 640)
        events = gpu_node.cluster.kubectl("get", "events", f"--field-selector=involvedObject.name={name}")
        assert "unresolvable" not in events, events
        gpu_node.delete(name)
        gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slots to be gone")

    def test_unprivileged_container_with_a_read_only_root_has_its_slice(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        security = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "readOnlyRootFilesystem": True}
        plan = [sliced("main", memory_mib=768, devices=[device])]
        script = f"id -u; touch /tmp/x 2>/dev/null || echo closed; {FILL}"
        name = gpu_node.run(plan, {"main": script}, each={"securityContext": security})
        gpu_node.wait_for_success(name)
        assert gpu_node.log(name).split()[0] == "1000"
        assert "closed" in gpu_node.log(name)
        assert within(got_mib(gpu_node.log(name)), 768)
        gpu_node.delete(name)

    def test_distroless_container_has_its_slice(self, gpu_node: GpuNode) -> None:
        plan = [sliced("main", memory_mib=768, devices=gpu_node.devices()[:1])]
        name = gpu_node.run(plan, {"main": strict(DISTROLESS, "fill", "2")})
        gpu_node.wait_for_success(name)
        assert within(got_mib(gpu_node.log(name)), 768)

    def test_pod_in_a_user_namespace_has_its_slice(self, gpu_node: GpuNode) -> None:
        if programs.runc_for_users(gpu_node.cluster.programs) is None:
            pytest.skip(
                "runc knows user namespaces since 1.2; hint: libseccomp-dev and pkg-config, then tools/bootstrap --tests"
            )
        plan = [sliced("main", memory_mib=768, devices=gpu_node.devices()[:1])]
        containers = {"main": strict(DISTROLESS, "fill", "2"), "who": strict(CUDA, "cat", "/proc/self/uid_map")}
        name = gpu_node.run(plan, containers, more={"hostUsers": False})
        gpu_node.wait_for_success(name)
        first, outside, _ = gpu_node.log(name, "who").split()[:3]
        assert first == "0"
        assert int(outside) > 0, "its root is nobody out here"
        assert within(got_mib(gpu_node.log(name)), 768)

    def test_root_in_a_container_cannot_change_its_limits(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        attack = (
            "cat /etc/ld.so.preload > /etc/ld.so.preload.mine; echo > /etc/ld.so.preload; "
            "echo x >> /run/calabash/slot/limits; rm /run/calabash/slot/limits; touch /run/calabash/slot/more; "
            f"unset LD_PRELOAD; {FILL}"
        )
        name = gpu_node.run([sliced("main", memory_mib=640, devices=[device])], {"main": attack})
        gpu_node.wait_for_success(name)
        assert within(got_mib(gpu_node.log(name)), 640)
        gpu_node.delete(name)

    def test_running_pods_keep_their_slices_while_agent_and_kubelet_are_killed(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        script = "load wait < /tmp/in & while [ ! -e /tmp/go ]; do sleep 0.1; done; exec load fill 2"
        name = gpu_node.run([sliced("main", memory_mib=512, devices=[device])], {"main": f"touch /tmp/in; {script}"})
        gpu_node.wait(name, "Running")
        before = gpu_node.slots()
        gpu_node.cluster.restart("agent")
        gpu_node.cluster.restart(gpu_node.node.kubelet)
        gpu_node.wait_until_served()
        assert gpu_node.slots() == before
        gpu_node.create_file_in_pod(name)
        gpu_node.wait_for_success(name)
        assert within(got_mib(gpu_node.log(name)), 512)
        gpu_node.delete(name)
        gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slot to be gone")
        after = gpu_node.run([sliced("main", memory_mib=512, devices=[device])], {"main": FILL})
        gpu_node.wait_for_success(after)
        assert within(got_mib(gpu_node.log(after)), 512)

    def test_pods_created_without_an_agent_start_when_the_agent_is_back(self, gpu_node: GpuNode) -> None:
        """A kubelet fails a pod permanently if no device plug-in is registered when the pod arrives.

        The relay keeps the plug-in registered while no agent runs, so these pods wait.
        """
        device = gpu_node.devices()[0]
        gpu_node.wait_until_served()
        gpu_node.cluster.kill("agent")
        plan = [sliced("main", memory_mib=256, cores=5, devices=[device])]
        # A pod that was rejected stays failed whatever its policy; a runtime that a busy machine breaks off is asked again.
        names = [gpu_node.run(plan, {"main": FILL}, cpu="10m", restart="OnFailure") for _ in range(8)]
        gpu_node.cluster.start("agent")
        for name in names:
            gpu_node.wait_for_success(name)
            assert within(got_mib(gpu_node.log(name)), 256)
            gpu_node.delete(name)

    def test_slice_of_a_pod_that_ended_without_an_agent_is_released(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        name = gpu_node.run([sliced("main", memory_mib=512, devices=[device])], {"main": HOLD})
        gpu_node.wait(name, "Running")
        gpu_node.cluster.kill("agent")
        gpu_node.delete(name)
        assert len(gpu_node.slots()) == 1
        gpu_node.cluster.start("agent")
        gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slot to be gone")

    def test_two_pods_on_one_card_have_at_most_30_and_70_percent_of_its_time(self, gpu_node: GpuNode) -> None:
        device = gpu_node.devices()[0]
        asked = (30, 70)
        names = [
            gpu_node.run(
                [sliced("main", memory_mib=2048, cores=cores, devices=[device])],
                {"main": f"exec load tenant 600 {KERNEL_NS}"},
                cpu="500m",
            )
            for cores in asked
        ]
        for name in names:
            gpu_node.wait(name, "Running")
            gpu_node.cluster.wait_for(partial(output_so_far, gpu_node, name), f"{name} to have its memory")
        uids = [gpu_node.cluster.api.get(f"{PODS}/{name}")["metadata"]["uid"] for name in names]
        percents = dict(zip(uids, asked, strict=True))
        gpu_node.cluster.wait_for(
            lambda: use_their_shares(gpu_node.state, percents), "two seconds in which both use most of their shares"
        )
        for name in names:
            gpu_node.delete(name)
