"""An API server in memory with nodes, and planners on it."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.planner.virtual import asked

from calabash.adapters.kube.objects.core import NAMESPACE, NODE, POD, Pod
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.api.part_metrics import PLANNER_UNLISTED
from calabash.kubernetes.objects.names import GPUS, PLAN, PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.planner.service import PlannerService, PlannerSettings
from calabash.kubernetes.pod_request import write_request
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube

SETTINGS = PlannerSettings(port=0, nominate_nodes_min=0, workers=2, renew_every_s=0.05)


def until(check: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Wait until ``check`` returns a true value, and return it."""
    end = time.monotonic() + timeout_s
    while not (answer := check()):
        if time.monotonic() > end:
            pytest.fail(f"not in {timeout_s:.0f} s: {what}")
        threading.Event().wait(0.01)
    return answer


class World:
    """An API server in memory with nodes of two devices, and planners on it."""

    def __init__(self) -> None:
        self.client = MemoryKube()
        for name in ("team", "calabash-system"):
            self.client.create(NAMESPACE, {"metadata": {"name": name}})
        self.services: list[PlannerService] = []
        self.expected_unlisted = 0

    def node(self, name: str, *, tokens: int = 128, **more: Any) -> None:
        self.client.create(NODE, {"metadata": {"name": name, "labels": {"pool": name}}})
        self.tokens(name, tokens)
        devices = [
            {"uuid": f"GPU-{i}", "index": i, "model": "A100", "memoryMib": 40960, "health": "healthy", **more}
            for i in range(2)
        ]
        self.client.create(GPU_NODE, {"metadata": {"name": name}})
        self.client.patch(GPU_NODE, name, body={"status": {"devices": devices}}, subresource="status")

    def tokens(self, node: str, count: int) -> None:
        """Set the number of device IDs that the node's kubelet offers."""
        self.client.patch(NODE, node, body={"status": {"allocatable": {GPUS: str(count)}}}, subresource="status")

    def pod(
        self, name: str, request: GpuRequest | None, *, namespace: str = "team", queue: str = "", **spec: Any
    ) -> Pod:
        annotations = {REQUEST: write_request(asked(request, queue=queue))} if request is not None else {}
        return self.client.create(
            POD,
            {
                "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
                "spec": {
                    "schedulerName": SCHEDULER,
                    "schedulingGates": [{"name": PLAN_GATE}, *spec.pop("gates", [])] if request else [],
                    "containers": [{"name": "main"}],
                    **spec,
                },
            },
            namespace,
        )

    def get(self, name: str, namespace: str = "team") -> Pod:
        found = self.client.get(POD, name, namespace)
        assert found is not None
        return found

    def start(self, **more: Any) -> PlannerService:
        service = PlannerService(self.client, replace(SETTINGS, **more))
        service.start()
        self.services.append(service)
        return service

    def settle(self, service: PlannerService) -> None:
        """Wait until the planner has made two decisions from now on and all that it ordered is written."""
        for _ in range(2):
            before = service._decided_at
            service._due.set()
            until(lambda before=before: service._decided_at > before, "a decision")  # type: ignore[misc]
        executor = service._executor
        until(executor.idle, "the writes made")

    def stand_for_election(self, service: PlannerService, times: int = 3) -> None:
        """Wait until the planner has tried to acquire the lease so many times from now on."""
        stepped, asked_for = service.lead._on_step, threading.Semaphore(0)

        def counted(answered: bool) -> None:
            stepped(answered)
            asked_for.release()

        service.lead._on_step = counted
        for _ in range(times):
            assert asked_for.acquire(timeout=60)
        service.lead._on_step = stepped

    def held(self, service: PlannerService, pod: Pod) -> bool:
        """Return True if the binding of the pod waits for its gang."""
        with service._lock:
            entry = service._core.store.entries.get(pod.metadata.uid) if service._core is not None else None
            if entry is None or entry.gang is None or service._core is None:
                return False
            return service._core.store.permits.holds(pod.metadata.uid, entry.gang)

    def ask(self, service: PlannerService, verb: str, body: dict[str, Any]) -> tuple[int, Any]:
        line = http.client.HTTPConnection(*service.server.address, timeout=60)
        line.request("POST", f"/{verb}", msgspec.json.encode(body))
        reply = line.getresponse()
        text = reply.read()
        line.close()
        return reply.status, msgspec.json.decode(text) if reply.status == 200 else text

    def filter(self, service: PlannerService, pod: Pod, *names: str) -> tuple[int, Any]:
        return self.ask(service, "filter", {"Pod": msgspec.to_builtins(pod), "NodeNames": list(names)})

    def bind(self, service: PlannerService, pod: Pod, node: str) -> tuple[int, Any]:
        meta = pod.metadata
        body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        return self.ask(service, "bind", body)


def unlisted_transitions(service: PlannerService) -> float:
    """Return how many unlisted transitions the planner has counted."""
    return service.figures._series[PLANNER_UNLISTED].figures[()]


def released(world: World, name: str, namespace: str = "team") -> Pod | None:
    pod = world.get(name, namespace)
    return pod if PLAN in pod.metadata.annotations and not pod.spec.scheduling_gates else None
