"""A cluster in memory with the server of a cluster, which is called over its socket."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from pathlib import Path
from typing import Any

from tests.api_client import PathClient
from tests.unit.kubernetes.planner.virtual import asked
from tests.unit.kubernetes.planner.world import until

from calabash.adapters.kube.objects.core import NAMESPACE, POD, Pod
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE, TENANT, KubeTenant
from calabash.adapters.pool.client import SOCKET_FILE
from calabash.api.gateway import ConsoleSettings
from calabash.kubernetes.objects.names import QUEUE as QUEUE_LABEL
from calabash.kubernetes.objects.names import REQUEST
from calabash.kubernetes.pod_request import write_request
from calabash.kubernetes.server.run import ClusterProgram
from calabash.kubernetes.server.settings import ClusterOrder, ClusterSettings
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube

SYSTEM = "calabash-system"
OFF = ClusterSettings(console=ConsoleSettings(listen="off"))


class UnixConnection(http.client.HTTPConnection):
    """HTTP connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(str(self._path))


class ServedCluster:
    """Two nodes of two devices, and the server."""

    def __init__(self, home: Path) -> None:
        self.kube = MemoryKube()
        self.home = home / "served"
        for name in (SYSTEM, "team"):
            self.namespace(name)
        for node in ("a", "b"):
            self.kube.create(GPU_NODE, {"metadata": {"name": node}})
            self.devices(node)
        self._program: ClusterProgram | None = None
        self._thread: threading.Thread | None = None

    @property
    def database(self) -> str:
        return f"sqlite:///{self.home / 'pool.db'}"

    def start(self, settings: ClusterSettings = OFF, *, usage_port: int = 0, metrics_port: int | None = None) -> None:
        order = ClusterOrder(
            home=self.home,
            namespace=SYSTEM,
            database=self.database,
            settings=settings,
            identity="one",
            usage_port=usage_port,
            metrics_port=metrics_port,
        )
        self._program = ClusterProgram(self.kube, order)
        self._thread = threading.Thread(target=self._program.run, daemon=True)
        self._thread.start()
        until(self._answers, "the server to answer")

    @property
    def metrics_port(self) -> int:
        """Port at which the server's metrics are answered."""
        assert self._program is not None
        return self._program.metrics_address[1]

    def stop(self) -> None:
        if self._program is not None and self._thread is not None:
            self._program.stop()
            self._thread.join(60)
            assert not self._thread.is_alive()
        self._program = None

    def _answers(self) -> bool:
        assert self._thread is not None
        assert self._thread.is_alive(), "the server ended"
        try:
            self.admin.get("/v1/status")
        except CalabashError:
            return False
        return True

    # -- asking ------------------------------------------------------------------------------------------------

    @property
    def admin(self) -> PathClient:
        """Return a client of the server's socket that acts as a program in the server's pod, with all rights."""
        return PathClient(self.home)

    def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request with a token; return the status and the answer."""
        connection = UnixConnection(self.home / SOCKET_FILE)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def member(self, user: str, tenant: str, role: str = "member") -> str:
        """Create a member of a tenant; return the member's token."""
        self.admin.put(f"/v1/users/{user}", {})
        self.admin.put("/v1/members", {"user": user, "role": role, "tenant": tenant})
        secret: str = self.admin.post("/v1/tokens", {"user": user})["secret"]
        return secret

    # -- the cluster ---------------------------------------------------------------------------------------------

    def namespace(self, name: str, queue: str = "") -> None:
        labels = {QUEUE_LABEL: queue} if queue else {}
        self.kube.create(NAMESPACE, {"metadata": {"name": name, "labels": labels}})

    def devices(self, node: str, *slices: dict[str, Any], **more: Any) -> None:
        """Write the devices that the agent of a node reports, with the slices on the first one."""
        found = [
            {"uuid": f"GPU-{node}{i}", "index": i, "model": "A100", "memoryMib": 40960, "health": "healthy", **more}
            for i in range(2)
        ]
        found[0]["slices"] = list(slices)
        self.kube.patch(GPU_NODE, node, body={"status": {"devices": found}}, subresource="status")

    def pod(self, name: str, namespace: str, *, node: str = "", waits: str = "") -> Pod:
        """Create a pod that requests a slice, as admission and planner leave it; ``waits``: why it has no node."""
        request = write_request(asked(GpuRequest(memory_mib=8192, core_percent=25, tenant=namespace)))
        spec: dict[str, Any] = {"schedulerName": "calabash", "containers": [{"name": "main"}]}
        if node:
            spec["nodeName"] = node
        body = {"metadata": {"name": name, "namespace": namespace, "annotations": {REQUEST: request}}, "spec": spec}
        made = self.kube.create(POD, body, namespace)
        if waits:
            condition = {"type": "PodScheduled", "status": "False", "reason": "NoCapacity", "message": waits}
            self.kube.patch(POD, name, namespace, body={"status": {"conditions": [condition]}}, subresource="status")
        return made

    def running(self, name: str, namespace: str, *, used_percent: int = 10) -> Pod:
        """Create a pod that has a slice of the first device of node a."""
        made = self.pod(name, namespace, node="a")
        part = {
            "pod": f"{namespace}/{name}",
            "podUid": made.metadata.uid,
            "container": "main",
            "mode": "vgpu",
            "policy": "fixed",
            "allocation": "al-1",
            "memoryMib": 8192,
            "corePercent": 25,
            "memoryUsedMib": 1024,
            "coreUsedPercent": used_percent,
        }
        node = self.kube.get(GPU_NODE, "a")
        assert node is not None
        before = [
            {
                "pod": s.pod,
                "podUid": s.pod_uid,
                "container": s.container,
                "mode": s.mode,
                "policy": s.policy,
                "allocation": s.allocation,
                "memoryMib": s.memory_mib,
                "corePercent": s.core_percent,
            }
            for s in node.status.devices[0].slices
        ]
        self.devices("a", *before, part)
        return made

    def tenant(self, name: str) -> KubeTenant | None:
        return self.kube.get(TENANT, name)

    def queues(self) -> dict[str, tuple[str, float, float | None]]:
        """Return parent, deserved and limit of all queues."""
        found = self.kube.list(QUEUE).items
        return {q.metadata.name: (q.spec.parent, q.spec.deserved, q.spec.limit) for q in found}
