"""Tests of pods with isolation ``brokered``: their limits, their access to devices, failures, and their end.

Programs in such a pod do not open a card. A worker process of the product does so and makes their CUDA calls.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.kube.card_time import pod_of, use_their_shares
from tests.kube.cluster import Cluster
from tests.kube.containers import output_so_far
from tests.kube.gpu_node import PODS, GpuNode, got_mib, sliced
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.native.sim_cuda_programs import program

from calabash.adapters.host.processes import start_time
from calabash.kubernetes.objects.plan import PlannedContainer

FILL = "load fill 2"  # takes memory in steps of 2 MiB until it is refused, and prints how much it got
RIGHT = "sim_cuda_ptx in_graphs && echo right"  # kernels run, and their results are checked
HOLD = "sleep 1000"
UNTIL_TOLD = "while [ ! -e /tmp/go ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        yield GpuNode(
            RealNode(cluster),
            tmp_path_factory.mktemp("brokered"),
            gpus="2xA100-40GB",
            programs_inside=[program("sim_cuda_ptx")],
        )


@pytest.fixture(autouse=True)
def nothing_is_left(gpu_node: GpuNode) -> Iterator[None]:
    """Delete all pods after each test, and check that no slot, no worker's socket and no allocated memory is left."""
    yield
    for pod in gpu_node.cluster.api.get(PODS)["items"]:
        gpu_node.delete(pod["metadata"]["name"])
    gpu_node.cluster.wait_for(lambda: gpu_node.slots() == [], "the slots to be gone")
    sockets = gpu_node.node.outside("/var/lib/calabash/workers")
    gpu_node.cluster.wait_for(lambda: not list(sockets.glob("*")), "the sockets of the workers to be gone")
    assert [gpu_node.card(index)["used_bytes"] for index in range(2)] == [0, 0]


def brokered(gpu_node: GpuNode, memory_mib: int, *, cores: int = 30, name: str = "main") -> PlannedContainer:
    return sliced(name, memory_mib=memory_mib, cores=cores, devices=gpu_node.devices()[:1], mode="brokered")


def within(got: int, limit_mib: int) -> bool:
    """Return True if a program got nearly its memory limit and no more; a CUDA context takes a part of the limit."""
    return limit_mib - 450 <= got <= limit_mib


def workers(uid: str) -> list[int]:
    """Return the PIDs of the worker processes in the control groups of a pod, in the order of their start.

    The PIDs are those that the test process sees.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        try:
            ours = entry.read_text() == "calabash-worker\n"
        except OSError:
            continue
        if ours and pod_of(int(entry.parent.name)) == uid:
            found.append(int(entry.parent.name))
    return sorted(found, key=lambda pid: (start_time(pid), pid))  # process IDs can wrap around


def strays(uid: str, pids: list[int]) -> list[str]:
    """Return the control groups of some processes of a pod that are not control groups of the pod.

    Only cgroup hierarchies in which the pod has processes are considered.
    """
    groups = (
        path.parent / "cgroup" for path in Path("/proc").glob("[0-9]*/comm") if pod_of(int(path.parent.name)) == uid
    )
    everybody = [line.split(":", 2) for file in groups for line in file.read_text().splitlines()]
    of_pods = {number for number, _, name in everybody if uid in name}
    theirs = [line for pid in pids for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    return [line for line in theirs if line.split(":")[0] in of_pods and uid not in line]


def uid_of(gpu_node: GpuNode, name: str) -> str:
    return str(gpu_node.cluster.api.get(f"{PODS}/{name}")["metadata"]["uid"])


def status(gpu_node: GpuNode, name: str) -> dict[str, Any]:
    found: dict[str, Any] = gpu_node.cluster.api.get(f"{PODS}/{name}")["status"]["containerStatuses"][0]
    return found


def wait_for_output(gpu_node: GpuNode, name: str, holds: Callable[[str], bool]) -> str:
    """Wait until the output of a pod satisfies the predicate, and return the output."""

    def found() -> str:
        log = output_so_far(gpu_node, name)
        return log if log and holds(log) else ""

    try:
        return gpu_node.cluster.wait_for(found, f"what {name} prints")
    except TimeoutError as error:
        error.add_note(output_so_far(gpu_node, name))
        raise


def test_program_computes_correctly_within_its_limit_and_sees_no_card_no_driver_and_no_slot(gpu_node: GpuNode) -> None:
    inspect = "ls /dev /run/calabash; env; cat /proc/self/mountinfo; cat /etc/ld.so.preload"
    plan = [brokered(gpu_node, 1024)]
    name = gpu_node.run(plan, {"main": f"{inspect}; {RIGHT}; {FILL}; {HOLD}"})
    uid = uid_of(gpu_node, name)
    gpu_node.wait(name, "Running")
    log = wait_for_output(gpu_node, name, lambda log: "\nright\n" in log and log.split()[-1].isdigit())
    assert within(got_mib(log), 1024)
    assert not [
        line for line in log.splitlines() if "nvidia" in line and "libnvidia-ml" not in line and "void" not in line
    ]
    assert not [word for word in ("CALABASH_SIM", "CALABASH_SLOT", "LD_PRELOAD", "node.state", "/slot") if word in log]
    assert "cat: can't open '/etc/ld.so.preload'" in log
    assert "CALABASH_REMOTE=unix:/run/calabash/worker.sock" in log
    (host,) = workers(uid)
    assert os.stat(f"/proc/{host}").st_uid >= 2_000_000_000
    gpu_node.cluster.wait_for(lambda: told_slices(gpu_node), "the node's object to tell the slice")
    (told,) = told_slices(gpu_node)
    assert (told["pod"], told["mode"], told["memoryMib"]) == (f"default/{name}", "brokered", 1024)
    gpu_node.delete(name)
    gpu_node.cluster.wait_for(lambda: not workers(uid), "the worker to end with its pod")


def told_slices(gpu_node: GpuNode) -> list[dict[str, Any]]:
    return [part for device in gpu_node.status()["devices"] for part in device.get("slices", ())]


def test_worker_and_software_slice_each_have_at_most_their_share_of_a_card(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[:1]
    plans = (brokered(gpu_node, 2048, cores=70), sliced("main", memory_mib=2048, cores=30, devices=device))
    names = [gpu_node.run([plan], {"main": "exec load tenant 600 1000000"}, cpu="500m") for plan in plans]
    for name in names:
        gpu_node.wait(name, "Running")
        gpu_node.cluster.wait_for(partial(output_so_far, gpu_node, name), f"{name} to have its memory")
    asked = dict(zip([uid_of(gpu_node, name) for name in names], (70, 30), strict=True))
    gpu_node.cluster.wait_for(
        lambda: use_their_shares(gpu_node.state, asked), "two seconds in which both use most of their shares"
    )


def test_running_program_and_its_next_start_continue_while_agent_and_kubelet_are_killed(gpu_node: GpuNode) -> None:
    script = f"(sleep 1000 | load wait) & {UNTIL_TOLD}; {RIGHT}; {FILL}; [ -e /dev/termination-log ] && exit 1"
    name = gpu_node.run([brokered(gpu_node, 3000)], {"main": script}, restart="Always")
    gpu_node.wait(name, "Running")
    wait_for_output(gpu_node, name, lambda log: "ready" in log)
    uid = uid_of(gpu_node, name)
    before = workers(uid)
    assert len(before) == 2, "the host, and the worker of one program"
    assert strays(uid, before) == [], "the agent's own groups are empty when it has ended"
    assert "Seccomp:\t2\n" in Path(f"/proc/{before[1]}/status").read_text(), "what it may ask of the kernel is bounded"
    gpu_node.cluster.restart("agent")
    gpu_node.cluster.restart(gpu_node.node.kubelet)
    gpu_node.wait_for_device_ids()
    assert workers(uid) == before
    gpu_node.create_file_in_pod(name)
    gpu_node.cluster.wait_for(lambda: status(gpu_node, name)["restartCount"] >= 1, "its container to start again")
    wait_for_output(gpu_node, name, lambda log: "ready" in log)
    gpu_node.cluster.wait_for(lambda: len(workers(uid)) == 2, "its former worker to be gone")
    assert workers(uid)[0] == before[0], "the same host"
    gpu_node.create_file_in_pod(name)
    wait_for_output(gpu_node, name, lambda log: "right" in log)


def test_killed_worker_affects_only_its_own_pod_and_the_next_start_has_another(gpu_node: GpuNode) -> None:
    answers = f"({UNTIL_TOLD}; echo; sleep 2; exit) | load wait; exit 1"
    hit, other = (
        gpu_node.run([brokered(gpu_node, 1500)], {"main": script}, restart="Always")
        for script in (answers, f"({UNTIL_TOLD}; echo; {HOLD}) | load wait")
    )
    for name in (hit, other):
        gpu_node.wait(name, "Running")
        gpu_node.cluster.wait_for(partial(output_so_far, gpu_node, name), "a program with its worker")
    uid = uid_of(gpu_node, hit)
    host, *its_workers = workers(uid)
    os.kill(host, signal.SIGKILL)
    gpu_node.cluster.wait_for(lambda: {host, *its_workers}.isdisjoint(workers(uid)), "its worker to end with it")
    for name in (hit, other):
        gpu_node.create_file_in_pod(name)
    gpu_node.cluster.wait_for(lambda: status(gpu_node, hit)["restartCount"] >= 1, "its container to be started again")
    told = gpu_node.cluster.kubectl("logs", "-p", hit).split()[1:4]
    assert len(told) == 3
    assert "0" not in told[1:], "its program was told; a launch may be accepted and fail later"
    wait_for_output(gpu_node, other, lambda log: log.split() == ["ready", "0", "0", "0"])
    wait_for_output(gpu_node, hit, lambda log: log.split() == ["ready"])
    assert workers(uid_of(gpu_node, hit))[0] != host
    assert status(gpu_node, other)["restartCount"] == 0


def test_init_containers_give_back_what_they_had_and_a_new_sandbox_has_workers_of_its_own(gpu_node: GpuNode) -> None:
    plan = [brokered(gpu_node, 1600, name="early"), brokered(gpu_node, 1500)]
    name = gpu_node.run(plan, {"early": FILL, "main": f"{FILL}; {HOLD}"}, init=["early"], restart="Always")
    gpu_node.wait(name, "Running")
    uid = uid_of(gpu_node, name)
    gpu_node.cluster.wait_for(lambda: len(gpu_node.slots()) == 1, "the slot of the init container to be gone")
    assert within(got_mib(gpu_node.log(name, "early")), 1600)
    (host,) = gpu_node.cluster.wait_for(lambda: workers(uid) if len(workers(uid)) == 1 else [], "one host")
    comms = (path for path in Path("/proc").glob("[0-9]*/comm") if pod_of(int(path.parent.name)) == uid)
    (sandbox,) = (int(path.parent.name) for path in comms if path.read_text() == "pause\n")
    os.kill(sandbox, signal.SIGKILL)
    gpu_node.cluster.wait_for(lambda: host not in workers(uid), "its worker to end with the sandbox")

    def again() -> bool:
        main = status(gpu_node, name)
        return int(main["restartCount"]) >= 1 and "running" in main["state"] and bool(output_so_far(gpu_node, name))

    gpu_node.cluster.wait_for(again, "the pod to run again")
    assert within(got_mib(gpu_node.log(name)), 1500)
