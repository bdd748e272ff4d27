"""Device IDs of running containers, from the kubelet's pod-resources service."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TypeVar

import grpc

from calabash.adapters.kubelet.channels import address, channel_options
from calabash.adapters.kubelet.protocol import TokenOwner
from calabash.adapters.kubelet.stubs import podresources_pb2 as pb
from calabash.model.errors import CalabashError, Reason

POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_Request = pb.ListPodResourcesRequest | pb.AllocatableResourcesRequest
R = TypeVar("R", pb.ListPodResourcesResponse, pb.AllocatableResourcesResponse)


class PodResources:
    """Client of the pod-resources service; thread-safe.

    The service reports ordinary and sidecar containers, but no init containers. It reports pods by name and not by UID,
    so a reported pod may be a deleted one that had the same name as an existing pod.

    Args:
        socket: the kubelet's socket.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, socket: Path = POD_RESOURCES_SOCKET, *, timeout_s: float = 5.0) -> None:
        self._socket, self._timeout_s = socket, timeout_s
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def list(self, resource: str) -> tuple[TokenOwner, ...]:
        """Return the containers that have device IDs of ``resource``. Raises CalabashError(KUBELET_DOWN)."""
        reply = self._ask("List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)
        return tuple(
            TokenOwner(
                namespace=pod.namespace, pod=pod.name, container=container.name, resource=resource, device_ids=ids
            )
            for pod in reply.pod_resources
            for container in pod.containers
            if (ids := _device_ids(container, resource))
        )

    def offered(self) -> dict[str, tuple[str, ...]]:
        """Return the resources of the registered device plug-ins, each with its healthy devices. Raises as ``list``."""
        reply = self._ask("GetAllocatableResources", pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse)
        found: dict[str, tuple[str, ...]] = {}
        for held in reply.devices:
            found[held.resource_name] = (*found.get(held.resource_name, ()), *held.device_ids)
        return {name: ids for name, ids in found.items() if ids}

    def _ask(self, method: str, request: _Request, reply: type[R]) -> R:
        call = self._connected().unary_unary(
            f"/v1.PodResourcesLister/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer: R = call(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            self.close()
            raise _down(self._socket, error) from error
        return answer

    def close(self) -> None:
        """Close the channel; the next call opens it again."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _connected(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(address(self._socket), options=channel_options())
            return self._channel


def _device_ids(container: pb.ContainerResources, resource: str) -> tuple[str, ...]:
    """Return a container's device IDs of a resource; the kubelet has one entry for each NUMA node."""
    return tuple(one for held in container.devices if held.resource_name == resource for one in held.device_ids)


def _down(socket: Path, error: grpc.RpcError) -> CalabashError:
    said = error.details() if isinstance(error, grpc.Call) else str(error)
    return CalabashError(
        f"the kubelet does not report which containers have which devices ({socket}): {said}",
        reason=Reason.KUBELET_DOWN,
        hint="check that the kubelet runs and that its pod-resources directory is mounted into the agent",
    )
