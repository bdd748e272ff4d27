"""Kubelet as a device plug-in sees it, over real Unix sockets; behaves as the real ones of 1.34 to 1.36.

It accepts registrations, connects back, follows the list of devices, calls, drops plug-ins, restarts. Only a part of the real
behaviour is implemented.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.adapters.kubelet.stubs import pluginregistration_pb2 as registration_pb
from calabash.adapters.kubelet.stubs import podresources_pb2 as resources_pb

WAIT_S = 60.0


def serve(socket: Path, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> grpc.Server:
    """Serve on a new Unix socket, from threads of its own."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


class FakeKubelet:
    """A kubelet whose device-plugins directory is ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registered: list[pb.RegisterRequest] = []
        self.devices: dict[str, str] = {}
        self.updates = 0
        self.refuse = ""
        self.channel: grpc.Channel | None = None
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._stream: Any = None

    def start(self) -> None:
        """Clear the directory of sockets and serve, as every kubelet does when it starts."""
        for old in self.directory.glob("*"):
            if old.is_socket():
                old.unlink()
        unary = grpc.unary_unary_rpc_method_handler
        register = unary(self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString)
        self._server = serve(self.directory / "kubelet.sock", "v1beta1.Registration", {"Register": register})

    def stop(self) -> None:
        """Stop with all connections; the sockets stay."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        self.drop_plugin()

    def drop_plugin(self) -> None:
        """Drop the plug-in without notice."""
        with self._changed:
            channel, self.channel = self.channel, None
            self.devices = {}
        if channel is not None:
            channel.close()

    def connect(self, socket: Path) -> None:
        """Connect to a plug-in, read its options, follow its devices."""
        channel = grpc.insecure_channel(f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),))
        options = self._call(channel, "GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)
        assert options.pre_start_required
        with self._changed:
            self.channel = channel
        listing = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )(pb.Empty())
        threading.Thread(target=self._follow, args=(channel, listing), daemon=True).start()

    def allocate(self, *ids: str) -> pb.AllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        reply: pb.AllocateResponse = self._ask("Allocate", request, pb.AllocateResponse)
        return reply

    def pre_start(self, *ids: str, timeout_s: float = WAIT_S) -> None:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        self._ask("PreStartContainer", request, pb.PreStartContainerResponse, timeout_s)

    def preferred(self, available: list[str], must: list[str], size: int) -> list[str]:
        wanted = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        reply = self._ask(
            "GetPreferredAllocation",
            pb.PreferredAllocationRequest(container_requests=[wanted]),
            pb.PreferredAllocationResponse,
        )
        return list(reply.container_responses[0].deviceIDs)

    def wait(self, check: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait until ``check`` is true; it is evaluated at every change."""
        with self._changed:
            assert self._changed.wait_for(check, timeout_s), (
                f"not in {timeout_s} s: {self.devices}, {len(self.registered)}"
            )

    def _register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        if self.refuse:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuse)
        self.connect(self.directory / request.endpoint)
        with self._changed:
            self.registered.append(request)
            self._changed.notify_all()
        return pb.Empty()

    def _follow(self, channel: grpc.Channel, listing: Iterator[pb.ListAndWatchResponse]) -> None:
        try:
            for reply in listing:
                with self._changed:
                    if self.channel is channel:
                        self.devices = {device.ID: device.health for device in reply.devices}
                        self.updates += 1
                        self._changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass
        finally:  # a list that ends without an error is the end of the plug-in as well
            with self._changed:
                if self.channel is channel:
                    self.devices = {}
                    self._changed.notify_all()

    def _ask(self, method: str, request: Any, reply: Any, timeout_s: float = WAIT_S) -> Any:
        assert self.channel is not None
        return self._call(self.channel, method, request, reply, timeout_s)

    @staticmethod
    def _call(channel: grpc.Channel, method: str, request: Any, reply: Any, timeout_s: float = WAIT_S) -> Any:
        call = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return call(request, timeout=timeout_s, wait_for_ready=True)


def find_in_registry(kubelet: FakeKubelet, registry: Path, seen: set[Path]) -> registration_pb.PluginInfo:
    """Register the next new socket in ``registry`` as the kubelet's plug-in watcher does."""
    end = time.monotonic() + WAIT_S
    while not (fresh := [path for path in registry.glob("*.sock") if path not in seen]):
        assert time.monotonic() < end
        threading.Event().wait(0.01)
    seen.add(fresh[0])
    with grpc.insecure_channel(f"unix:{fresh[0]}", options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        empty, status = registration_pb.InfoRequest, registration_pb.RegistrationStatus
        info: registration_pb.PluginInfo = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=empty.SerializeToString,
            response_deserializer=registration_pb.PluginInfo.FromString,
        )(empty(), timeout=WAIT_S, wait_for_ready=True)
        kubelet.connect(Path(info.endpoint))
        channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            request_serializer=status.SerializeToString,
            response_deserializer=registration_pb.RegistrationStatusResponse.FromString,
        )(status(plugin_registered=True), timeout=WAIT_S)
    return info


def serve_pod_resources(
    socket: Path,
    reply: resources_pb.ListPodResourcesResponse,
    allocatable: resources_pb.AllocatableResourcesResponse | None = None,
) -> grpc.Server:
    """Serve the kubelet's pod-resources service with one answer to each call."""
    list_all = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: reply,
        resources_pb.ListPodResourcesRequest.FromString,
        resources_pb.ListPodResourcesResponse.SerializeToString,
    )
    offered = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: allocatable or resources_pb.AllocatableResourcesResponse(),
        resources_pb.AllocatableResourcesRequest.FromString,
        resources_pb.AllocatableResourcesResponse.SerializeToString,
    )
    return serve(socket, "v1.PodResourcesLister", {"List": list_all, "GetAllocatableResources": offered})
