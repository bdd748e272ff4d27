"""A planner and its kube-scheduler on a cluster of fake nodes, configured as by the chart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster

from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY, PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest, write_request
from calabash.model.request import GpuRequest

PORT = 7070
SYSTEM = "calabash-system"
CRDS = {"gpunodes": "GpuNode", "queues": "Queue"}


def crd(
    plural: str, kind: str, *, group: str = "calabash.dev", version: str = "v1alpha1", scope: str = "Cluster"
) -> Json:
    """Return a CustomResourceDefinition that accepts any object, unlike the strict definitions of the chart."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    form = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [form],
        },
    }


def devices(count: int, *, model: str = "NVIDIA A100-SXM4-40GB", memory_mib: int = 40960) -> list[Json]:
    """Return the devices of a node as its agent would report them."""
    return [
        {"uuid": f"GPU-{i}", "index": i, "model": model, "memoryMib": memory_mib, "health": "healthy"}
        for i in range(count)
    ]


def planned_pod(name: str, request: GpuRequest, *, movable: bool = False, **spec: Any) -> Json:
    """Return a pod in the form that admission gives it; ``spec`` are further fields of its spec."""
    asked = PodRequest(
        dialect="native",
        containers=(ContainerRequest(container="main", kind=ContainerKind.MAIN, request=request),),
        gang_source=GangSource.ANNOTATION if request.gang else GangSource.NONE,
        movable=movable,
    )
    limits = {GPUS: str(request.count), CORES: str(request.core_percent)}
    if request.memory_mib is not None:
        limits[MEMORY] = f"{request.memory_mib}Mi"
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["true"], "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {REQUEST: write_request(asked)}},
        "spec": {
            "schedulerName": SCHEDULER,
            "schedulingGates": [{"name": PLAN_GATE}],
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }


def confined_to(pod: Json) -> list[str]:
    """Return the nodes to which the planner has confined a pod by node affinity.

    The planner does so for pods of a scheduler that does not call it.
    """
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [value for term in required["nodeSelectorTerms"] for value in term["matchFields"][0]["values"]]


class Planned:
    """The planner as a program of the cluster, and an unmodified kube-scheduler that calls it as an extender.

    Args:
        cluster: the cluster.
        nodes: number of fake nodes.
        gpus: number of devices of each node.
        prefix: prefix of the names of the nodes.
        planner: further options of the planner's command line, with their values.
    """

    def __init__(
        self, cluster: Cluster, nodes: int, gpus: int, *, prefix: str, planner: Mapping[str, str] | None = None
    ) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.prefix, self._gpus = prefix, gpus
        self._install()
        self.nodes = self.add_nodes(nodes, prefix=prefix)
        python = Path(sys.executable)
        options = {"--kubeconfig": str(cluster.kubeconfig), "--listen": f"127.0.0.1:{PORT}", **(planner or {})}
        words = [word for pair in options.items() for word in pair]
        cluster.start_program("planner", [str(python.with_name("calabash")), "serve", "planner", *words])
        self._programs = ["planner"]
        if options.get("--handshake") != "affinity":  # else the cluster's scheduler binds without the planner
            cluster.add_scheduler("calabash-scheduler", scheduler_configuration(f"http://127.0.0.1:{PORT}"))
            self._programs.insert(0, "calabash-scheduler")

    def _install(self) -> None:
        for plural, kind in CRDS.items():
            if not self.api.exists(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.calabash.dev"):
                self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd(plural, kind))
            self.cluster.wait_for(partial(self._served, plural), f"kind {kind}")
        if not self.api.exists(f"/api/v1/namespaces/{SYSTEM}"):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})

    def add_nodes(self, count: int, **more: Any) -> list[str]:
        """Add ``count`` nodes and return their names; see ``Cluster.fake_nodes``."""
        room = {GPUS: str(self._gpus * 64)}  # device IDs: one for each device of each container
        names = self.cluster.fake_nodes(count, room, **more)
        self.each(self._devices, names)
        return names

    def _served(self, plural: str) -> bool:
        try:
            self.api.get(f"/apis/calabash.dev/v1alpha1/{plural}")
        except RefusedError:
            return False  # not served yet, or its storage is being created
        return True

    def _devices(self, node: str) -> None:
        path = "/apis/calabash.dev/v1alpha1/gpunodes"
        body = {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": node}}
        self.api.create(path, body)
        self.api.patch(f"{path}/{node}/status", {"status": {"devices": devices(self._gpus)}})

    def each(self, call: Any, things: list[Any]) -> None:
        with ThreadPoolExecutor(8) as several:
            list(several.map(call, things))

    # ---- pods -----------------------------------------------------------------------------------------------------

    def create(self, namespace: str, pods: list[Json]) -> None:
        """Create the pods in a namespace concurrently; create the namespace if it does not exist."""
        self.make_namespace(namespace)
        self.each(lambda pod: self.api.create(f"/api/v1/namespaces/{namespace}/pods", pod), pods)

    def make_queue(self, name: str, namespace: str, **spec: float) -> None:
        """Create a queue, and a namespace whose pods belong to it."""
        queue = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        self.api.create("/apis/calabash.dev/v1alpha1/queues", queue)
        self.make_namespace(namespace, **{"calabash.dev/queue": name})

    def make_namespace(self, namespace: str, **labels: str) -> None:
        if not self.api.exists(f"/api/v1/namespaces/{namespace}"):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
            self.cluster.wait_for(
                lambda: self.api.exists(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"), "its account"
            )

    def pods(self, namespace: str) -> dict[str, Json]:
        found = self.api.get(f"/api/v1/namespaces/{namespace}/pods")
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    def bound(self, namespace: str) -> dict[str, str]:
        return {
            name: pod["spec"]["nodeName"] for name, pod in self.pods(namespace).items() if "nodeName" in pod["spec"]
        }

    def wait_bound(self, namespace: str, count: int, timeout_s: float = 120) -> dict[str, str]:
        self.cluster.wait_for(
            lambda: len(self.bound(namespace)) >= count, f"{count} pods of {namespace} bound", timeout_s
        )
        return self.bound(namespace)

    def clear(self, namespace: str) -> None:
        """Delete all pods of the namespace without a grace period."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.api.delete(path, {"gracePeriodSeconds": 0})
        self.cluster.wait_for(lambda: not self.pods(namespace), f"the end of {namespace}")

    # ---- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End both programs. The nodes stay until the cluster of the module is closed."""
        for name in self._programs:
            self.cluster.kill(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
