"""A real node with simulated cards and the product's agent, whose devices are allocated by ResourceClaims."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.kube.gpu_node import CUDA, PODS, GpuNode, got_mib
from tests.kube.node import RealNode

from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_numbers = itertools.count(1)


class ClaimNode(GpuNode):
    """A node with the allocation API ``dra``: the cluster's scheduler allocates its claims."""

    def __init__(self, node: RealNode, scratch: Path) -> None:
        super().__init__(node, scratch, words=["--allocation-api=claims"])
        self._made: dict[str, list[str]] = {}  # claims by pod
        cel = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "vgpu"'
        self.create(
            "/apis/resource.k8s.io/v1/deviceclasses",
            "DeviceClass",
            {"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression": cel}}]}},
        )
        self.cluster.wait_for(lambda: self.cluster.api.get(SLICES)["items"], "slices of the node")

    def create(self, path: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        version = "v1" if path.startswith("/api/v1") else "resource.k8s.io/v1"
        made: dict[str, Any] = self.cluster.api.create(path, {"apiVersion": version, "kind": kind, **body})
        return made

    def spec(self, *sizes_mib: int, cores: int = 30) -> dict[str, Any]:
        """Return the spec of a claim with one request for each size."""
        requests = [
            {
                "name": f"r{number}",
                "exactly": {
                    "deviceClassName": "vgpu",
                    "capacity": {"requests": {"memory": f"{size}Mi", "cores": str(cores)}},
                },
            }
            for number, size in enumerate(sizes_mib)
        ]
        apart = {"constraints": [{"distinctAttribute": "calabash.dev/uuid"}]} if len(sizes_mib) > 1 else {}
        return {"devices": {"requests": requests, **apart}}

    def template(self, *sizes_mib: int) -> str:
        name = f"template{next(_numbers)}"
        body = {"metadata": {"name": name}, "spec": {"spec": self.spec(*sizes_mib)}}
        self.create("/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", "ResourceClaimTemplate", body)
        return name

    def claim(self, *sizes_mib: int) -> str:
        name = f"claim{next(_numbers)}"
        self.create(CLAIMS, "ResourceClaim", {"metadata": {"name": name}, "spec": self.spec(*sizes_mib)})
        return name

    def share(self, *scripts: str, requests: tuple[str, ...] = (), **source: str) -> str:
        """Create a pod with one claim and a container for each script; return the pod's name.

        Args:
            scripts: shell script of each container.
            requests: the request of the claim that each container uses; empty if all containers use the whole claim.
            source: the claim or the template, as the field ``resourceClaimName`` or ``resourceClaimTemplateName``.
        """
        name = f"sharing{next(_numbers)}"
        containers = [
            {
                "name": f"c{number}",
                "image": CUDA,
                "command": ["sh", "-c", script],
                "resources": {"claims": [{"name": "gpu"} | ({"request": requests[number]} if requests else {})]},
            }
            for number, script in enumerate(scripts)
        ]
        claims = [{"name": "gpu", **source}]
        spec = {"containers": containers, "resourceClaims": claims, "restartPolicy": "Never"}
        spec |= {"terminationGracePeriodSeconds": 0}
        self.create(PODS, "Pod", {"metadata": {"name": name}, "spec": spec})
        return name

    def ends(self, name: str) -> None:
        self.wait_for_success(name)

    def got_mib(self, name: str, container: str = "c0") -> int:
        return got_mib(self.log(name, container))

    def free(self) -> None:
        self.cluster.wait_for(lambda: self.slots() == [], "the slots to be gone")

    def specs(self) -> list[str]:
        listed: str = self.cluster.exec_inside("ls", "/run/cdi", beside=self.node.name)
        return listed.split()

    def delete(self, name: str) -> None:
        """Remove the pod and the claims that were made for it by ``run``, and wait until they are gone."""
        super().delete(name)
        for claim in self._made.pop(name, ()):
            self.cluster.api.delete(f"{CLAIMS}/{claim}")
            self.cluster.wait_for(partial(self._gone, claim), f"the end of {claim}")

    def wait_until_served(self) -> None:
        self.node.wait_until_ready()

    def _gone(self, claim: str) -> bool:
        return not self.cluster.api.exists(f"{CLAIMS}/{claim}")

    def _request_fields(self, planned: PlannedContainer) -> dict[str, Any]:
        return {"resources": {"claims": [{"name": planned.name}]}}

    def _create_bound(self, pod: dict[str, Any], plan: Sequence[PlannedContainer]) -> None:
        """Create a pod and a claim for each of its containers.

        The node's agent follows the claims, so the cluster's scheduler allocates them and binds the pod; no plan is
        written.
        """
        name = pod["metadata"]["name"]
        claims = {container.name: f"{name}-{container.name}" for container in plan}
        for container in plan:
            spec = {"devices": {"requests": [_request(number, part) for number, part in enumerate(container.slices)]}}
            self.create(CLAIMS, "ResourceClaim", {"metadata": {"name": claims[container.name]}, "spec": spec})
        pod["spec"]["resourceClaims"] = [{"name": c, "resourceClaimName": claim} for c, claim in claims.items()]
        self.cluster.api.create(PODS, pod)
        self._made[name] = list(claims.values())


def _request(number: int, part: PlannedSlice) -> dict[str, Any]:
    """Return a device request that only a slice of this size on this card satisfies."""
    card = f'device.attributes["calabash.dev"].uuid == "{part.device}"'
    amounts = {"memory": f"{part.memory_mib}Mi", "cores": str(part.core_percent)}
    exactly = {
        "deviceClassName": "vgpu",
        "capacity": {"requests": amounts},
        "selectors": [{"cel": {"expression": card}}],
    }
    return {"name": f"r{number}", "exactly": exactly}
