"""A real node with simulated cards and the product's agent, and pods in the state in which the planner leaves them.

Such pods have a plan and are bound to the node, so that these tests need no planner.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kube.api import RefusedError
from tests.kube.images import Image, layer_of, write_archive
from tests.kube.node import RealNode
from tests.native.sim_cuda_programs import program
from tests.native.simnode import simctl

from calabash.adapters.gpu.library import simulated_library_dir
from calabash.adapters.kubelet import PodResources
from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY, PLAN, PLAN_GATE
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, write_plan
from calabash.model.errors import CalabashError

ROOT = Path(__file__).resolve().parents[2]
CUDA = "localhost/cuda:1"
DISTROLESS = "localhost/distroless:1"
MIB = 1 << 20
PODS = "/api/v1/namespaces/default/pods"
_HOME = "/var/lib/calabash"
_STATE = "/var/lib/simulated/node.state"
_numbers = itertools.count(1)


def cuda_image(scratch: Path, *programs: Path) -> Image:
    """Return an image with this machine's C library, a shell, and the programs that use the simulated card."""
    return Image(CUDA, (layer_of(cuda_tree(scratch / "cuda", *programs)),), {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]})


def cuda_tree(tree: Path, *programs: Path) -> Path:
    """Write the files of the image to a directory, and add ``programs`` to its ``/bin``; return the directory."""
    for directory in ("bin", "lib64", "usr/lib/x86_64-linux-gnu", "etc", "tmp", "proc", "dev", "sys"):
        (tree / directory).mkdir(parents=True)
    (tree / "tmp").chmod(0o1777)
    load = program("sim_cuda_load")
    shutil.copy(load, tree / "bin" / "load")
    for added in programs:
        shutil.copy(added, tree / "bin" / added.name)
    shutil.copy("/bin/busybox", tree / "bin" / "busybox")
    for name in ("sh", "sleep", "cat", "ls", "id", "env", "grep", "touch", "kill"):
        (tree / "bin" / name).symlink_to("busybox")
    simulated = simulated_library_dir()
    for library in _libraries(load, simulated / "libcuda.so.1", simulated / "libnvidia-ml.so.1"):
        place = "lib64" if library.name.startswith("ld-linux") else "usr/lib/x86_64-linux-gnu"
        shutil.copy(library.resolve(), tree / place / library.name)
    return tree


def distroless_image(scratch: Path) -> Image:
    """Return an image with one program and its libraries only: no shell, no ``/etc``, no loader cache, no user names."""
    tree = scratch / "distroless"
    (tree / "bin").mkdir(parents=True)
    load = program("sim_cuda_load")
    shutil.copy(load, tree / "bin" / "load")
    for library in _libraries(load, simulated_library_dir() / "libcuda.so.1"):
        place = tree / ("lib64" if library.name.startswith("ld-linux") else "usr/lib/x86_64-linux-gnu")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), place / library.name)
    return Image(DISTROLESS, (layer_of(tree),), {"Entrypoint": ["/bin/load"], "User": "65532:65532"})


def _libraries(*files: Path) -> set[Path]:
    found: set[Path] = set()
    for file in files:
        said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
        found |= {
            Path(path)
            for path in re.findall(r"(/\S+)", said)
            if not any(ours in path for ours in ("calabash", "libcuda", "libnvidia"))
        }
    return found


def sliced(
    name: str, *, memory_mib: int, cores: int = 30, devices: Sequence[str], mode: str = "vgpu"
) -> PlannedContainer:
    """Return the plan of one container with the same slice of each device."""
    parts = tuple(PlannedSlice(device=uuid, memory_mib=memory_mib, core_percent=cores) for uuid in devices)
    return PlannedContainer(name=name, mode=mode, slices=parts)


class GpuNode:
    """A real node with simulated cards and the product's agent.

    Args:
        node: the node.
        scratch: directory for files that are made on the way.
        gpus: number and models of the cards, as ``simctl create`` takes them.
        programs_inside: further programs in the image with which containers run.
        words: further arguments of the agent.
        agent: name of the agent's program in the cluster.
    """

    def __init__(
        self,
        node: RealNode,
        scratch: Path,
        *,
        gpus: str = "2xT4",
        programs_inside: Sequence[Path] = (),
        words: Sequence[str] = (),
        agent: str = "agent",
    ) -> None:
        self.node = node
        self.agent = agent
        self.cluster = node.cluster
        for crd in sorted((ROOT / "charts" / "calabash" / "crds").glob("*.yaml")):
            self.cluster.kubectl("apply", "--server-side", "-f", str(crd))
        self.inside_state = _STATE
        self.state = node.outside(_STATE)
        self.state.parent.mkdir(parents=True)
        made = simctl("create", self.state, "--gpus", gpus, "--seed", 1)
        assert made.returncode == 0, made.stderr
        images = [cuda_image(scratch, *programs_inside), distroless_image(scratch)]
        node.import_images(write_archive(scratch / "cuda.tar", images))
        self.relay = f"{agent}-relay"
        self.cluster.start_program(
            self.relay,
            [sys.executable, "-m", "calabash.kubernetes.node_plugin.devices.relay", f"--home={_HOME}"],
            beside=node.name,
        )
        self.cluster.start_program(
            agent,
            [
                sys.executable,
                "-m",
                "calabash.kubernetes.node_plugin.daemon",
                f"--node={node.name}",
                f"--home={_HOME}",
                "--relay",
                f"--sim={_STATE}",
                "--use-every=1",
                f"--kubeconfig={self.cluster.kubeconfig}",
                *words,
            ],
            beside=node.name,
        )
        if "--allocation-api=claims" not in words:
            self.wait_for_device_ids()

    def wait_for_device_ids(self) -> None:
        """Wait until the kubelet offers the agent's device IDs, and the API server has them as well.

        Both are checked: a kubelet that has just been restarted has not reported yet, and the API server then still has
        the number of device IDs from before.
        """
        self.offered(GPUS)
        self.cluster.wait_for(lambda: self.device_id_count() > 0, "tokens of the node")

    def wait_until_served(self) -> None:
        """Wait until new pods can be allocated devices after the agent or the kubelet was restarted."""
        self.wait_for_device_ids()

    def device_id_count(self, resource: str = GPUS) -> int:
        """Return the allocatable amount of device IDs, or of another resource, in the status of the Node object."""
        status = self.cluster.api.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return int(status.get("allocatable", {}).get(resource, "0"))

    def offered(self, *resources: str) -> dict[str, tuple[str, ...]]:
        """Wait until the kubelet offers all of these resources; return the device IDs by resource.

        The kubelet itself is asked, because the status of the Node object lags behind. A pod that is bound before the
        kubelet offers the resource fails permanently.
        """

        def found() -> dict[str, tuple[str, ...]]:
            now = self._offered()
            return now if set(resources) <= now.keys() else {}

        return self.cluster.wait_for(found, f"{', '.join(resources)} to be offered")

    def restart_agent(self, number: int = signal.SIGKILL) -> None:
        """End the agent with a signal and start another one, to which the relay connects.

        The kubelet offers the devices all the time, because the relay stays registered.
        """
        self.cluster.kill(self.agent, number)
        self.cluster.start(self.agent)
        self.offered(GPUS)

    def _offered(self) -> dict[str, tuple[str, ...]]:
        """Return the device IDs that the kubelet offers, by resource; {} if the kubelet does not answer."""
        kubelet = PodResources(self.node.outside("/var/lib/kubelet/pod-resources/kubelet.sock"))
        try:
            return dict(kubelet.offered())
        except CalabashError:
            return {}
        finally:
            kubelet.close()

    def status(self) -> dict[str, Any]:
        """Return the status that the agent reported in the GpuNode; {} before its first report."""
        path = f"/apis/calabash.dev/v1alpha1/gpunodes/{self.node.name}"
        if not self.cluster.api.exists(path):
            return {}
        status: dict[str, Any] = self.cluster.api.get(path).get("status", {})
        return status

    def devices(self) -> list[str]:
        """Return the UUIDs of the node's devices."""
        found = self.cluster.wait_for(lambda: list(self.status().get("devices", [])), "devices of the node")
        return [device["uuid"] for device in found]

    def card(self, index: int = 0) -> dict[str, Any]:
        """Return the state of a card as the simulated driver records it."""
        shown = simctl("show", self.state, "--json")
        assert shown.returncode == 0, shown.stderr
        device: dict[str, Any] = json.loads(shown.stdout)["devices"][index]
        return device

    def slots(self) -> list[str]:
        """Return the names of the existing slots."""
        listed = self.cluster.exec_inside("ls", f"{_HOME}/alloc", beside=self.node.name)
        return sorted(listed.split())

    def run(
        self,
        plan: Sequence[PlannedContainer],
        scripts: Mapping[str, str | Mapping[str, Any]],
        *,
        init: Sequence[str] = (),
        sidecars: Sequence[str] = (),
        more: Mapping[str, Any] | None = None,
        each: Mapping[str, Any] | None = None,
        cpu: str = "",
        restart: str = "Never",
    ) -> str:
        """Create a pod whose containers have the slices of ``plan``, and return its name.

        Args:
            plan: the slices of each container that has any.
            scripts: for each container, its shell script, or its image and other fields.
            init, sidecars: names of the containers that are init containers and sidecars.
            more: further fields of the pod's spec.
            each: further fields of every container.
            cpu: CPU request of every container; "" for none. A pod without a request gets hardly any processor time if
                others run.
            restart: restart policy of the pod.
        """
        name = f"pod{next(_numbers)}"
        asked = {c.name: self._request_fields(c) for c in plan}
        containers = {c: {**_container(c, what), **asked.get(c, {}), **(each or {})} for c, what in scripts.items()}
        for container in containers.values() if cpu else ():
            asked_of = container.get("resources", {})
            container["resources"] = {**asked_of, "requests": {**asked_of.get("requests", {}), "cpu": cpu}}
        for sidecar in sidecars:
            containers[sidecar]["restartPolicy"] = "Always"
        early = [*init, *sidecars]
        spec = {
            "initContainers": [containers[c] for c in scripts if c in early],
            "containers": [containers[c] for c in scripts if c not in early],
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 0,
            **(more or {}),
        }
        self._create_bound({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, plan)
        return name

    def _request_fields(self, planned: PlannedContainer) -> dict[str, Any]:
        """Return the fields of a container with which it requests its planned slices."""
        part = planned.slices[0]
        limits = {GPUS: str(len(planned.slices)), MEMORY: f"{part.memory_mib}Mi", CORES: str(part.core_percent)}
        return {"resources": {"limits": limits}}

    def _create_bound(self, pod: dict[str, Any], plan: Sequence[PlannedContainer]) -> None:
        """Create a pod, write its plan, and bind it to the node."""
        name = pod["metadata"]["name"]
        pod["spec"]["schedulingGates"] = [{"name": PLAN_GATE}]
        uid = self.cluster.api.create(PODS, pod)["metadata"]["uid"]
        metadata: dict[str, Any] = {}
        if plan:
            text = write_plan(PodPlan(id="1", pod_uid=uid, node=self.node.name, containers=tuple(plan)))
            metadata = {"annotations": {PLAN: text}}
        self.cluster.api.patch(f"{PODS}/{name}", {"metadata": metadata, "spec": {"schedulingGates": None}}, "strategic")
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node.name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": uid}, "target": target}
        try:
            self.cluster.api.create(f"{PODS}/{name}/binding", body)
        except RefusedError as refused:
            if refused.status != 409:  # the cluster's scheduler was faster, and there is only one node
                raise

    def wait(self, name: str, *phases: str) -> str:
        """Wait until the pod has one of the phases, and return the phase."""

        def phase() -> str:
            status = self.cluster.api.get(f"{PODS}/{name}")["status"]
            found = str(status.get("phase", ""))
            assert found in phases or found != "Failed", (
                f"pod {name} failed: {status.get('reason')}: {status.get('message')}"
            )
            return found if found in phases else ""

        try:
            return self.cluster.wait_for(phase, f"pod {name} {' or '.join(phases)}")
        except TimeoutError as error:
            error.add_note(self.cluster.kubectl("describe", "pod", name, check=False))
            raise

    def wait_for_success(self, name: str) -> None:
        """Wait until the pod has succeeded. The error for a pod that failed has its status and its containers' logs."""
        if self.wait(name, "Succeeded", "Failed") != "Succeeded":
            status = self.cluster.api.get(f"{PODS}/{name}")["status"]
            logs = self.cluster.kubectl("logs", name, "--all-containers", "--prefix", check=False)
            raise AssertionError(f"pod {name} failed: {json.dumps(status)}\n{logs}")

    def log(self, name: str, container: str = "main") -> str:
        """Return the output of a container so far."""
        return self.cluster.kubectl("logs", name, "-c", container)

    def create_file_in_pod(self, name: str, file: str = "/tmp/go") -> None:
        """Create a file in a pod whose program waits for the file; retry while the kubelet is starting.

        The container may end before the command reports success. The end counts as success.
        """
        before = self._count_ended_containers(name)

        def done() -> bool:
            try:
                self.cluster.kubectl("exec", name, "--", "touch", file)
            except RuntimeError:
                return self._count_ended_containers(name) > before
            return True

        self.cluster.wait_for(done, f"a command in pod {name}", every_s=0.5)

    def _count_ended_containers(self, name: str) -> int:
        """Return how many times containers of a pod have ended."""
        found = self.cluster.api.get(f"{PODS}/{name}")["status"].get("containerStatuses", ())
        return sum(one["restartCount"] + ("terminated" in one["state"]) for one in found)

    def delete(self, name: str) -> None:
        """Remove the pod, and wait until it is gone."""
        self.cluster.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        self.cluster.wait_for(lambda: not self.cluster.api.exists(f"{PODS}/{name}"), f"the end of pod {name}")


def _container(name: str, what: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(what, str):
        return {"name": name, "image": CUDA, "command": ["sh", "-c", what]}
    return {"name": name, **what}


def got_mib(log: str) -> int:
    """Return the MiB that a container with the script ``FILL`` could allocate, from the container's output.

    The amount is the last line that is a number, because lines of standard error may follow it.
    """
    return int([line for line in log.splitlines() if line.strip().isdigit()][-1]) // MIB
